"""Writes and reads what is in a volume or a share, in the Pods that reach Ceph: python3 - WHAT PLACE PART [USER KEY]

    write-volume, read-volume   PLACE is the volume's id; PART one of its parts, each of 1 MiB
    write-share, read-share     PLACE is the share's path; PART a file's name; USER and KEY are those of an access rule

Reading fails if anything else is there.
"""

import hashlib
import sys

CONF = "/etc/ceph/ceph.conf"
SIZE = 1 << 20


def content(name):
    """As good as random, and the same each time."""
    return hashlib.shake_128(name.encode()).digest(SIZE)


def compare(found, name):
    if found == bytes(SIZE):
        raise SystemExit(f"{name} is empty")
    if found != content(name):
        raise SystemExit(f"{name} is not what was written")


def volume(what, place, part):
    import rados
    import rbd

    with rados.Rados(conffile=CONF, rados_id="cinder") as cluster, cluster.open_ioctx("volumes") as pool:
        with rbd.Image(pool, f"volume-{place}", read_only=what == "read") as image:
            if what == "write":
                image.write(content(part), int(part) * SIZE)
                image.flush()
            else:
                compare(image.read(int(part) * SIZE, SIZE), part)


def share(what, place, part, user, key):
    import cephfs

    # The share is root's, and this process is not: the rule decides, which the server looks at.
    settings = {"key": key, "keyring": "", "client_permissions": "false"}
    files = cephfs.LibCephFS(auth_id=user, conffile=CONF, conf=settings)
    files.mount(mount_root=place.encode())
    file = files.open(f"/{part}".encode(), "w" if what == "write" else "r", 0o644)
    if what == "write":
        files.write(file, content(part), 0)
        files.fsync(file, 0)
    else:
        compare(files.read(file, 0, SIZE), part)
    files.close(file)
    files.shutdown()


what, _, where = sys.argv[1].partition("-")
{"volume": volume, "share": share}[where](what, *sys.argv[2:])
