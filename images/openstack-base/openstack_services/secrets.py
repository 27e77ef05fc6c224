"""Makes the Secrets of the installation: python3 -m openstack_services.secrets

The Secret "openstack" is the source of all others. Each of its values is made once and never changed; missing ones are
added. The other Secrets are written anew from it each time.
"""

import base64
import json
import os
import secrets
import ssl
import struct
import time
import urllib.error
import urllib.request
import uuid

from openstack_services.log import say

SOURCE = "openstack"
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


def password():
    """A password that needs no quotes anywhere."""
    return secrets.token_hex(20)


def fernet_key():
    return base64.urlsafe_b64encode(os.urandom(32)).decode()


def ceph_key():
    """A key as ceph-authtool makes it: type, time, length, and 16 random bytes."""
    head = struct.pack("<HIIH", 1, int(time.time()), 0, 16)
    return base64.b64encode(head + os.urandom(16)).decode()


def ceph_fsid():
    return str(uuid.uuid4())


VALUES = {
    "mariadb-root-password": password,
    "rabbitmq-password": password,
    "keystone-admin-password": password,
    "keystone-database-password": password,
    "keystone-fernet-key-0": fernet_key,
    "keystone-fernet-key-1": fernet_key,
    "keystone-credential-key-0": fernet_key,
    "keystone-credential-key-1": fernet_key,
    "cinder-database-password": password,
    "cinder-service-password": password,
    "manila-database-password": password,
    "manila-service-password": password,
    "ceph-fsid": ceph_fsid,
    "ceph-mon-key": ceph_key,
    "ceph-admin-key": ceph_key,
    "ceph-mgr-key": ceph_key,
    "ceph-mds-key": ceph_key,
    "ceph-cinder-key": ceph_key,
    "ceph-manila-key": ceph_key,
}


def _service(name, values):
    """The secret part of the settings of a service with a queue and a user of its own."""
    database = f"mysql+pymysql://{name}:{values[f'{name}-database-password']}@mariadb/{name}?charset=utf8mb4"
    own = values[f"{name}-service-password"]
    return (
        f"[DEFAULT]\ntransport_url = rabbit://openstack:{values['rabbitmq-password']}@rabbitmq:5672/\n"
        f"[database]\nconnection = {database}\n"
        f"[keystone_authtoken]\npassword = {own}\n"
        f"[service_user]\npassword = {own}\n"
    )


def _keyring(name, key, **caps):
    lines = "".join(f'    caps {daemon} = "{cap}"\n' for daemon, cap in caps.items())
    return f"[{name}]\n    key = {key}\n{lines}"


def _clouds(values, namespace):
    cloud = {
        "auth": {
            "auth_url": f"http://keystone.{namespace}.svc:5000/v3",
            "username": "admin",
            "password": values["keystone-admin-password"],
            "project_name": "admin",
            "user_domain_name": "Default",
            "project_domain_name": "Default",
        },
        "region_name": "RegionOne",
        "identity_api_version": 3,
        # There is no Glance. "openstack volume create" asks where it is, whether it needs it or not.
        "has_image": False,
    }
    # JSON is YAML.
    return json.dumps({"clouds": {"openstack": cloud}}, indent=2) + "\n"


def derived(values, namespace):
    """The Secrets that are made of the source."""
    keystone = (
        f"[database]\nconnection = mysql+pymysql://keystone:{values['keystone-database-password']}"
        "@mariadb/keystone?charset=utf8mb4\n"
    )
    rabbitmq = f"default_user = openstack\ndefault_pass = {values['rabbitmq-password']}\n"
    everything = {"mon": "allow *", "mgr": "allow *", "osd": "allow *", "mds": "allow *"}
    admin = _keyring("client.admin", values["ceph-admin-key"], **everything)
    cinder = _keyring(
        "client.cinder",
        values["ceph-cinder-key"],
        mon="profile rbd",
        mgr="profile rbd",
        osd="profile rbd pool=volumes, profile rbd pool=backups",
    )
    manila = _keyring("client.manila", values["ceph-manila-key"], mon="allow r", mgr="allow rw")
    daemons = (
        _keyring("mon.", values["ceph-mon-key"], mon="allow *")
        + admin
        + _keyring("mgr.x", values["ceph-mgr-key"], mon="allow profile mgr", osd="allow *", mds="allow *")
        + _keyring("mds.a", values["ceph-mds-key"], mon="allow profile mds", mgr="allow profile mds", osd="allow *",
                   mds="allow *")
        + cinder
        + manila
    )
    return {
        "mariadb-secrets": {"root-password": values["mariadb-root-password"]},
        "rabbitmq-secrets": {"20-secrets.conf": rabbitmq},
        "keystone-secrets": {"20-secrets.conf": keystone},
        "keystone-fernet-keys": {number: values[f"keystone-fernet-key-{number}"] for number in "01"},
        "keystone-credential-keys": {number: values[f"keystone-credential-key-{number}"] for number in "01"},
        "cinder-secrets": {"20-secrets.conf": _service("cinder", values)},
        "manila-secrets": {"20-secrets.conf": _service("manila", values)},
        "openstack-admin": {"clouds.yaml": _clouds(values, namespace)},
        "ceph-secrets": {"fsid": values["ceph-fsid"], "keyring": daemons},
        "ceph-cinder": {"keyring": cinder},
        "ceph-manila": {"keyring": manila},
    }


class Api:
    """The Secrets of this Pod's namespace."""

    def __init__(self):
        with open(f"{ACCOUNT}/namespace", encoding="utf-8") as file:
            self.namespace = file.read().strip()
        host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
        self._url = f"https://{host}:{port}/api/v1/namespaces/{self.namespace}/secrets"
        self._tls = ssl.create_default_context(cafile=f"{ACCOUNT}/ca.crt")
        # As the kubelet and kubectl: a cluster's own authority may lack what a public one must have.
        self._tls.verify_flags &= ~ssl.VERIFY_X509_STRICT

    def _call(self, method, path, body=None, kind="application/json"):
        with open(f"{ACCOUNT}/token", encoding="utf-8") as file:
            token = file.read().strip()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": kind}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self._url}{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=20, context=self._tls) as answer:
            return json.load(answer)

    def get(self, name):
        """A Secret, or None."""
        try:
            return self._call("GET", f"/{name}")
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise

    def apply(self, name, data):
        """Writes a Secret by server-side apply."""
        path = f"/{name}?fieldManager=openstack-secrets&force=true"
        return self._call("PATCH", path, _secret(name, data), "application/apply-patch+yaml")

    def create(self, name, data):
        """Creates a Secret; fails if there is one."""
        return self._call("POST", "", _secret(name, data))

    def replace(self, secret):
        """Replaces a Secret unless it changed since it was read."""
        return self._call("PUT", f"/{secret['metadata']['name']}", secret)


def _encoded(data):
    return {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}


def _secret(name, data):
    labels = {"app.kubernetes.io/part-of": "openstack-services"}
    metadata = {"name": name, "labels": labels}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": _encoded(data)}


def source(api):
    """The values of the source, after missing ones were added."""
    there = api.get(SOURCE)
    if there is None:
        api.create(SOURCE, {name: make() for name, make in VALUES.items()})
        say(f"made Secret {SOURCE}")
        there = api.get(SOURCE)
    missing = {name: make() for name, make in VALUES.items() if name not in there["data"]}
    if missing:
        there["data"].update(_encoded(missing))
        there = api.replace(there)
        say(f"added to Secret {SOURCE}: {', '.join(missing)}")
    return {key: base64.b64decode(value).decode() for key, value in there["data"].items()}


def main():
    api = Api()
    written = derived(source(api), api.namespace)
    for name, data in written.items():
        api.apply(name, data)
    say(f"wrote {len(written)} Secrets")


if __name__ == "__main__":
    main()
