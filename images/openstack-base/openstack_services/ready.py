"""Whether a daemon works: python3 -m openstack_services.ready cinder cinder-volume cinder-volume-0@rbd

It has lately reported to the database, and it takes messages from its own queue. A daemon reports nothing while its
driver has not reached the storage. But its start writes to the same row, so that a row that is new is no report: only
one whose count has grown since this check saw this process first.
"""

import json
import os
import sys

from openstack_services import checks
from openstack_services.settings import Settings

# Seconds since the last report: a daemon reports every ten.
FRESH = 45

# The count of reports, and the process for which it was seen. A container's restart keeps the file, and not the process.
SEEN = "/tmp/reports.json"


def started():
    """When the container's first process started, in ticks since the machine did."""
    with open("/proc/1/stat", encoding="ascii") as file:
        # The name, in parentheses, may have spaces.
        return int(file.read().rpartition(")")[2].split()[19])


def first_seen(count):
    """The count when this check saw the process first."""
    now = started()
    try:
        with open(SEEN, encoding="ascii") as file:
            process, before = json.load(file)
        if process == now:
            return before
    except (OSError, ValueError):
        pass
    new = f"{SEEN}.{os.getpid()}"
    with open(new, "w", encoding="ascii") as file:
        json.dump([now, count], file)
    os.rename(new, SEEN)
    return count


def main():
    service, binary, host = sys.argv[1:]
    settings = Settings(service)
    # cinder writes 0 and manila "False" or the row's number.
    query = (
        "SELECT report_count, TIMESTAMPDIFF(SECOND, updated_at, UTC_TIMESTAMP()) FROM services "
        f"WHERE `binary` = '{binary}' AND host = '{host}' AND deleted IN ('0', 'False') "
        "ORDER BY updated_at DESC LIMIT 1"
    )
    count, age = checks.row(settings, query) or (0, None)
    if count <= first_seen(count):
        raise SystemExit(f"{binary} on {host} has not reported to the database since it started")
    if age is None or age > FRESH:
        last = "never" if age is None else f"{age} s ago"
        raise SystemExit(f"{binary} on {host} last reported to the database: {last}")
    if not checks.queue(settings, f"{binary}.{host}"):
        raise SystemExit(f"nothing takes messages from the queue {binary}.{host}")


if __name__ == "__main__":
    main()
