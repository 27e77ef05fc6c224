"""Waits until Keystone's Pods have a release: an upgrade goes on when all of them were replaced."""

import socket
import time
import urllib.error
import urllib.request

from openstack_services.log import say

# A Service that has the address of each Pod, ready or not.
PODS = "keystone-pods"
PORT = 5000
LIMIT = 5


def _releases():
    """What each Pod says that it is."""
    found = socket.getaddrinfo(PODS, PORT, socket.AF_INET, socket.SOCK_STREAM)
    return {address[4][0]: _ask(address[4][0]) for address in found}


def _ask(address):
    with urllib.request.urlopen(f"http://{address}:{PORT}/-/release", timeout=LIMIT) as answer:
        return answer.read().decode().strip()


def _lacking(wanted):
    """What keeps Keystone from having the release, or None."""
    try:
        others = {address: one for address, one in _releases().items() if not one.startswith(wanted)}
    except (OSError, urllib.error.URLError) as error:
        return str(error)
    return f"a Pod of it has another release: {others}" if others else None


def wait(wanted):
    """Waits until each Pod of Keystone's says that it has this; the Job has the time limit."""
    said = None
    while (lacking := _lacking(wanted)) is not None:
        if lacking != said:
            said = lacking
            say(f"Keystone has not {wanted} yet: {lacking}")
        time.sleep(1)
