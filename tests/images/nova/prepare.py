"""Prepares Nova and Placement: their settings, databases, tables, users and endpoints.

Its properties, in the environment: NAMESPACE, MARIADB_ROOT_PASSWORD, RABBITMQ_PASSWORD, KEYSTONE_ADMIN_PASSWORD. The
settings have these passwords, also that of Nova's own user, since this Nova is for trials.
"""

import os
import pathlib
import shutil
import subprocess

from openstack_services.bootstrap import root
from openstack_services.identity import Identity

FOLDER = pathlib.Path("/etc/trial")
ADMIN = os.environ["KEYSTONE_ADMIN_PASSWORD"]
DATABASES = ("nova_api", "nova_cell0", "nova", "placement")

AUTH = f"""auth_type = password
auth_url = http://keystone:5000/v3
username = nova
password = {ADMIN}
project_name = service
user_domain_id = default
project_domain_id = default
"""

TOKEN = f"""[keystone_authtoken]
{AUTH}www_authenticate_uri = http://keystone:5000/v3
service_token_roles_required = true
service_token_roles = service
"""


def database(name):
    password = os.environ["MARIADB_ROOT_PASSWORD"]
    return f"mysql+pymysql://root:{password}@mariadb/{name}?charset=utf8mb4"


NOVA = f"""[DEFAULT]
transport_url = rabbit://openstack:{os.environ["RABBITMQ_PASSWORD"]}@rabbitmq:5672/
compute_driver = fake.PredictableNodeUUIDDriver
host = fake
my_ip = 127.0.0.1
state_path = /var/lib/nova
use_stderr = true
[api_database]
connection = {database("nova_api")}
[database]
connection = {database("nova")}
{TOKEN}
[placement]
{AUTH}
[neutron]
{AUTH}
# It is not asked for anything, and has to have an address.
[glance]
api_servers = http://glance.invalid
[cinder]
{AUTH}catalog_info = volumev3:cinderv3:publicURL
[service_user]
send_service_user_token = true
{AUTH}
[conductor]
workers = 1
[scheduler]
workers = 1
discover_hosts_in_cells_interval = 5
[oslo_concurrency]
lock_path = /tmp
[vnc]
enabled = false
"""

PLACEMENT = f"""[DEFAULT]
use_stderr = true
[api]
auth_strategy = keystone
[placement_database]
connection = {database("placement")}
{TOKEN}"""


def manage(program, *words):
    subprocess.run([f"{program}-manage", "--config-file", str(FOLDER / f"{program}.conf"), *words], check=True)


def main():
    shutil.copy("/etc/nova/api-paste.ini", FOLDER)
    (FOLDER / "nova.conf").write_text(NOVA)
    (FOLDER / "placement.conf").write_text(PLACEMENT)
    with root().cursor() as cursor:
        for name in DATABASES:
            cursor.execute(f"CREATE DATABASE IF NOT EXISTS `{name}` CHARACTER SET utf8mb4")
    manage("placement", "db", "sync")
    manage("nova", "api_db", "sync")
    manage("nova", "cell_v2", "map_cell0", "--database_connection", database("nova_cell0"))
    cells = subprocess.run(
        ["nova-manage", "--config-file", str(FOLDER / "nova.conf"), "cell_v2", "list_cells"],
        check=True,
        capture_output=True,
        text=True,
    )
    if "cell1" not in cells.stdout:
        manage("nova", "cell_v2", "create_cell", "--name", "cell1")
    manage("nova", "db", "sync")
    namespace = os.environ["NAMESPACE"]
    identity = Identity(f"http://keystone.{namespace}.svc:5000/v3", ADMIN)
    identity.wait()
    identity.service_user("nova", ADMIN)
    identity.endpoint("nova", "compute", f"http://nova.{namespace}.svc:8774/v2.1")
    identity.endpoint("neutron", "network", f"http://nova.{namespace}.svc:9696")
    identity.endpoint("placement", "placement", f"http://nova.{namespace}.svc:8778")


main()
