"""Whether a daemon works: python3 -m openstack_services.ready cinder cinder-volume cinder-volume-0@rbd

It has lately reported to the database, and it takes messages from its own queue.
"""

import sys

from openstack_services import checks
from openstack_services.settings import Settings

# Seconds since the last report: a daemon reports every ten.
FRESH = 45


def main():
    service, binary, host = sys.argv[1:]
    settings = Settings(service)
    # cinder writes 0 and manila "False" or the row's number.
    query = (
        "SELECT TIMESTAMPDIFF(SECOND, updated_at, UTC_TIMESTAMP()) FROM services "
        f"WHERE `binary` = '{binary}' AND host = '{host}' AND deleted IN ('0', 'False') "
        "ORDER BY updated_at DESC LIMIT 1"
    )
    age = checks.database(settings, query)
    if age is None or age > FRESH:
        last = "never" if age is None else f"{age} s ago"
        raise SystemExit(f"{binary} on {host} last reported to the database: {last}")
    if not checks.queue(settings, f"{binary}.{host}"):
        raise SystemExit(f"nothing takes messages from the queue {binary}.{host}")


if __name__ == "__main__":
    main()
