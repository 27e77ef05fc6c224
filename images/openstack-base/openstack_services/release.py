"""Which release of a service an image has: the version of Debian's package."""

import subprocess


def release(service):
    """The version of a service's package."""
    command = ["dpkg-query", "--show", "--showformat=${Version}", f"python3-{service}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
