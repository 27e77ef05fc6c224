"""An API under uwsgi, with answers of its own in front: /-/live; /-/ready, if what the service needs is there; and
/-/release, which upgrades ask for.
"""

import importlib
import os

from openstack_services import checks
from openstack_services.release import distribution, release
from openstack_services.settings import Settings

SERVICE = os.environ["SERVICE"]

APPLICATIONS = {
    "cinder": ("cinder.wsgi.wsgi", "initialize_application"),
    "keystone": ("keystone.server.wsgi", "initialize_public_application"),
    "manila": ("manila.wsgi.wsgi", "initialize_application"),
}


def _load():
    module, function = APPLICATIONS[SERVICE]
    return getattr(importlib.import_module(module), function)()


_api = _load()
_settings = Settings(SERVICE)
_release = f"{distribution()} {release(SERVICE)}"


def _wrong():
    """What is wrong, or None."""
    try:
        checks.database(_settings)
    except Exception as error:  # Whatever it is, it is the answer.
        return f"database: {error}"
    if SERVICE == "keystone":
        return None
    try:
        checks.queue(_settings)
    except Exception as error:
        return f"queue: {error}"
    return None


def application(environ, start_response):
    """The application that uwsgi calls."""
    path = environ.get("PATH_INFO")
    if path not in ("/-/live", "/-/ready", "/-/release"):
        return _api(environ, start_response)
    wrong = _wrong() if path == "/-/ready" else None
    right = _release if path == "/-/release" else "ok"
    text = f"{wrong or right}\n".encode()
    status = "503 Service Unavailable" if wrong else "200 OK"
    start_response(status, [("Content-Type", "text/plain"), ("Content-Length", str(len(text)))])
    return [text]
