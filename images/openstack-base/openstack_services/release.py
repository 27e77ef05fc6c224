"""Which release of a service an image has: the version of Debian's package, and whose packages these are."""

import platform
import subprocess


def release(service):
    """The version of a service's package."""
    command = ["dpkg-query", "--show", "--showformat=${Version}", f"python3-{service}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def distribution():
    """The name of Debian's release. All images of one installation have the same."""
    return platform.freedesktop_os_release()["VERSION_CODENAME"]
