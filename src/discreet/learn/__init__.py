"""Private learners: estimators that pay before they read."""
