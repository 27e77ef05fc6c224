"""Waits until a service's bootstrap Job has prepared the database for this image: python3 -m openstack_services.wait cinder"""

import sys
import time

import pymysql

from openstack_services import checks
from openstack_services.log import say
from openstack_services.release import release
from openstack_services.settings import Settings


def main():
    service = sys.argv[1]
    mine = release(service)
    query = f"SELECT 1 FROM bootstrap.done WHERE service = '{service}' AND `release` = '{mine}'"
    said = None
    while True:
        try:
            if checks.database(Settings(service), query):
                return
            seen = f"the bootstrap of {service} {mine} has not run"
        except pymysql.MySQLError as error:
            seen = f"database: {error}"
        if seen != said:
            say(seen)
            said = seen
        time.sleep(1)


if __name__ == "__main__":
    main()
