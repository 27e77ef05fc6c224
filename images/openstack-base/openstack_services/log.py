"""Lines of JSON on standard output."""

import datetime
import json


def say(message, **fields):
    """Prints a line."""
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
    print(json.dumps({"timestamp": now, "levelname": "INFO", "message": message, **fields}), flush=True)
