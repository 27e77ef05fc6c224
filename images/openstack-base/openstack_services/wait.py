"""Waits until a service may start: python3 -m openstack_services.wait SERVICE [COMMAND...]

Its bootstrap Job has prepared the database for this image, and the command, if there is one, has succeeded.
"""

import subprocess
import sys
import time

import pymysql

from openstack_services import checks
from openstack_services.log import say
from openstack_services.release import release
from openstack_services.settings import Settings

# Seconds that a command may take. Ceph's wait for a pool that has no daemon yet.
LIMIT = 30


def lacks_bootstrap(service, mine):
    """What is missing in the database, or None."""
    query = f"SELECT 1 FROM bootstrap.done WHERE service = '{service}' AND `release` = '{mine}'"
    try:
        if checks.database(Settings(service), query):
            return None
        return f"the bootstrap of {service} {mine} has not run"
    except pymysql.MySQLError as error:
        return f"database: {error}"


def fails(command):
    """Why a command fails, or None."""
    try:
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return f"{' '.join(command)} has not ended after {LIMIT} s"
    if done.returncode == 0:
        return None
    last = done.stderr.strip().splitlines()[-1:]
    return f"{' '.join(command)} has ended with {done.returncode}: {' '.join(last)}"


def until_none(look):
    """Looks again each second until there is nothing to say, and says what is new."""
    said = None
    while (seen := look()) is not None:
        if seen != said:
            say(seen)
            said = seen
        time.sleep(1)


def main():
    service, *command = sys.argv[1:]
    mine = release(service)
    until_none(lambda: lacks_bootstrap(service, mine))
    if command:
        until_none(lambda: fails(command))


if __name__ == "__main__":
    main()
