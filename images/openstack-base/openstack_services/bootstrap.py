"""Prepares a service: python3 -m openstack_services.bootstrap keystone|cinder|manila

Makes the database and its user, brings the tables to this image's release, and makes the user and the endpoints in
Keystone. Each step looks at what is there first, so it can be run again. Its properties, in the environment: NAMESPACE,
MARIADB_ROOT_PASSWORD, KEYSTONE_ADMIN_PASSWORD.

In an upgrade, Keystone is first: its tables are expanded, its Pods replaced, and then its tables contracted. The tables
of the other services follow when all its Pods are new.
"""

import contextlib
import os
import subprocess
import sys
import time

import pymysql

from openstack_services import rollout, share_types
from openstack_services.identity import REGION, Identity
from openstack_services.log import say
from openstack_services.release import distribution, release
from openstack_services.settings import Settings

MIGRATE = {
    "keystone": ["keystone-manage", "db_sync"],
    "cinder": ["cinder-manage", "db", "sync"],
    "manila": ["manila-manage", "db", "sync"],
}

# With tables of an earlier release: what old and new Pods can work with, and what only new ones can.
EXPAND = ["keystone-manage", "db_sync", "--expand"]
CONTRACT = ["keystone-manage", "db_sync", "--contract"]

# Rows that a release has otherwise: written beside the Pods that run. It ends when there are none, and the next release
# may need that.
ONLINE = {"cinder": ["cinder-manage", "db", "online_data_migrations"]}

# What a service's tables are made with. Manila's first migrations of some releases fail with any other.
CHARACTERS = {"manila": "utf8mb3"}

# Names and types in the catalogue, and the path of the address.
CATALOGUE = {
    "cinder": ("cinderv3", "volumev3", "http://cinder-api.{namespace}.svc:8776/v3/%(project_id)s"),
    "manila": ("manilav2", "sharev2", "http://manila-api.{namespace}.svc:8786/v2"),
}


def root():
    """The database server's administrator; waits until it is there."""
    said = None
    while True:
        try:
            return pymysql.connect(
                host="mariadb", user="root", password=os.environ["MARIADB_ROOT_PASSWORD"], autocommit=True,
                connect_timeout=5,
            )
        except pymysql.MySQLError as error:
            if str(error) != said:
                said = str(error)
                say(f"database: {said}")
        time.sleep(1)


def prepare_database(connection, service):
    """Makes a service's database and its user."""
    with connection.cursor() as cursor:
        own = Settings(service).database()
        user, password, database = own["user"], own["password"], own["database"]
        characters = CHARACTERS.get(service, "utf8mb4")
        cursor.execute(f"CREATE DATABASE IF NOT EXISTS `{database}` CHARACTER SET {characters}")
        cursor.execute(f"CREATE USER IF NOT EXISTS '{user}'@'%%' IDENTIFIED BY %s", (password,))
        cursor.execute(f"ALTER USER '{user}'@'%%' IDENTIFIED BY %s", (password,))
        cursor.execute(f"GRANT ALL ON `{database}`.* TO '{user}'@'%'")
        cursor.execute("CREATE DATABASE IF NOT EXISTS bootstrap")
        cursor.execute(
            "CREATE TABLE IF NOT EXISTS bootstrap.done (service VARCHAR(64), `release` VARCHAR(128), "
            "PRIMARY KEY (service, `release`))"
        )
        cursor.execute(f"GRANT SELECT ON bootstrap.done TO '{user}'@'%'")


@contextlib.contextmanager
def alone(connection, service):
    """Keeps two Jobs from migrating one database at once: the lock ends with the connection."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT GET_LOCK(%s, 600)", (f"bootstrap-{service}",))
        if cursor.fetchone()[0] != 1:
            raise SystemExit(f"another bootstrap of {service} has run for ten minutes")
        yield


def is_upgrade(connection, service):
    """Whether the tables are those of another release."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT `release` FROM bootstrap.done WHERE service = %s", (service,))
        return release(service) not in {row[0] for row in cursor.fetchall()} and cursor.rowcount > 0


def note_done(connection, service):
    """Lets this release's Pods start."""
    with connection.cursor() as cursor:
        cursor.execute("INSERT IGNORE INTO bootstrap.done VALUES (%s, %s)", (service, release(service)))
    say(f"{service} {release(service)} may start")


def prepare_keystone(connection, url, admin):
    """Keystone's tables, in an upgrade in two steps, and its administrator."""
    upgrade = is_upgrade(connection, "keystone")
    subprocess.run(EXPAND if upgrade else MIGRATE["keystone"], check=True)
    subprocess.run(
        ["keystone-manage", "bootstrap", "--bootstrap-username", "admin", "--bootstrap-project-name", "admin",
         "--bootstrap-role-name", "admin", "--bootstrap-service-name", "keystone", "--bootstrap-region-id", REGION,
         "--bootstrap-public-url", url, "--bootstrap-internal-url", url, "--bootstrap-admin-url", url],
        check=True,
        env={**os.environ, "OS_BOOTSTRAP_PASSWORD": admin},
    )
    note_done(connection, "keystone")
    # Also when an earlier run of this Job was interrupted here: with nothing to contract it does nothing.
    rollout.wait(f"{distribution()} {release('keystone')}")
    subprocess.run(CONTRACT, check=True)


def main():
    service = sys.argv[1]
    namespace = os.environ["NAMESPACE"]
    keystone = f"http://keystone.{namespace}.svc:5000/v3"
    admin = os.environ["KEYSTONE_ADMIN_PASSWORD"]
    connection = root()
    with alone(connection, service):
        prepare_database(connection, service)
        say(f"bring the tables of {service} to {release(service)}")
        if service == "keystone":
            prepare_keystone(connection, keystone, admin)
            return
        if is_upgrade(connection, service):
            rollout.wait(distribution())
        subprocess.run(MIGRATE[service], check=True)
        note_done(connection, service)
        identity = Identity(keystone, admin)
        identity.wait()
        identity.service_user(service, Settings(service).get("keystone_authtoken", "password"))
        name, kind, url = CATALOGUE[service]
        identity.endpoint(name, kind, url.format(namespace=namespace))
        if service == "manila":
            share_types.ensure(identity, url.format(namespace=namespace))
        if service in ONLINE:
            subprocess.run(ONLINE[service], check=True)


if __name__ == "__main__":
    main()
