"""A client: it trains as it likes, and only the clipped change of its model leaves."""

from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from discreet.federated import discreet_mod
from hospital.plan import PLAN

app = ClientApp(mods=[discreet_mod(PLAN)])


@app.train()
def train(message: Any, _: Any) -> Any:
    """Move every number by a tenth."""
    sent = message.content.array_records["arrays"]
    moved = {name: Array(sent[name].numpy() + np.float32(0.1)) for name in sent}
    return Message(RecordDict({"arrays": ArrayRecord(moved)}), reply_to=message)
