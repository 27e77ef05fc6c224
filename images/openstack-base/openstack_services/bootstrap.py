"""Prepares a service: python3 -m openstack_services.bootstrap keystone|cinder|manila

Makes the database and its user, brings the tables to this image's release, and makes the user and the endpoints in
Keystone. Each step looks at what is there first, so it can be run again. Its properties, in the environment: NAMESPACE,
MARIADB_ROOT_PASSWORD, KEYSTONE_ADMIN_PASSWORD.
"""

import contextlib
import os
import subprocess
import sys
import time

import pymysql

from openstack_services import share_types
from openstack_services.identity import REGION, Identity
from openstack_services.log import say
from openstack_services.release import release
from openstack_services.settings import Settings

MIGRATE = {
    "keystone": ["keystone-manage", "db_sync"],
    "cinder": ["cinder-manage", "db", "sync"],
    "manila": ["manila-manage", "db", "sync"],
}

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
        cursor.execute(f"CREATE DATABASE IF NOT EXISTS `{database}` CHARACTER SET utf8mb4")
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


def note_done(connection, service):
    """Lets this release's Pods start."""
    with connection.cursor() as cursor:
        cursor.execute("INSERT IGNORE INTO bootstrap.done VALUES (%s, %s)", (service, release(service)))
    say(f"{service} {release(service)} may start")


def main():
    service = sys.argv[1]
    namespace = os.environ["NAMESPACE"]
    keystone = f"http://keystone.{namespace}.svc:5000/v3"
    admin = os.environ["KEYSTONE_ADMIN_PASSWORD"]
    connection = root()
    with alone(connection, service):
        prepare_database(connection, service)
        say(f"bring the tables of {service} to {release(service)}")
        subprocess.run(MIGRATE[service], check=True)
        if service == "keystone":
            subprocess.run(
                ["keystone-manage", "bootstrap", "--bootstrap-username", "admin", "--bootstrap-project-name", "admin",
                 "--bootstrap-role-name", "admin", "--bootstrap-service-name", "keystone", "--bootstrap-region-id",
                 REGION, "--bootstrap-public-url", keystone, "--bootstrap-internal-url", keystone,
                 "--bootstrap-admin-url", keystone],
                check=True,
                env={**os.environ, "OS_BOOTSTRAP_PASSWORD": admin},
            )
        note_done(connection, service)
        if service == "keystone":
            return
        identity = Identity(keystone, admin)
        identity.wait()
        identity.service_user(service, Settings(service).get("keystone_authtoken", "password"))
        name, kind, url = CATALOGUE[service]
        identity.endpoint(name, kind, url.format(namespace=namespace))
        if service == "manila":
            share_types.ensure(identity, url.format(namespace=namespace))


if __name__ == "__main__":
    main()
