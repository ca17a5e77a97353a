"""An app for Flower whose rounds follow a federated plan."""
