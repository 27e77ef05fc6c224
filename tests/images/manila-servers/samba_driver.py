"""A back end of Manila that serves shares of CIFS: directories, which Samba shows.

Manila's own drivers for that need LVM, ZFS or Nova. Whom a share lets in are users of the server, as with these.
"""

import os
import shutil
import subprocess

from oslo_config import cfg

from manila.share import driver

OPTIONS = [
    cfg.StrOpt("samba_address", help="What clients reach the server by."),
    cfg.StrOpt("samba_directory", default="/srv/shares", help="Where the shares are."),
]

cfg.CONF.register_opts(OPTIONS)


def net_conf(*words):
    subprocess.run(["net", "conf", *words], check=True, capture_output=True, text=True)


def is_shown(name):
    listed = subprocess.run(["net", "conf", "listshares"], check=True, capture_output=True, text=True)
    return name in listed.stdout.split()


class SambaDriver(driver.ShareDriver):
    def __init__(self, *args, **kwargs):
        super().__init__(False, *args, config_opts=[OPTIONS], **kwargs)

    def check_for_setup_error(self):
        os.makedirs(self.configuration.samba_directory, exist_ok=True)

    def _update_share_stats(self, data=None):
        disk = os.statvfs(self.configuration.samba_directory)
        super()._update_share_stats(
            {
                "share_backend_name": self.configuration.share_backend_name,
                "vendor_name": "Mooring's tests",
                "driver_version": "1",
                "storage_protocol": "CIFS",
                "total_capacity_gb": disk.f_blocks * disk.f_frsize / 2**30,
                "free_capacity_gb": disk.f_bavail * disk.f_frsize / 2**30,
                "snapshot_support": True,
                "create_share_from_snapshot_support": True,
            }
        )

    def get_configured_ip_versions(self):
        return [4]

    def _path(self, name):
        return os.path.join(self.configuration.samba_directory, name)

    def _export(self, share):
        return [{"path": f"\\\\{self.configuration.samba_address}\\{share['name']}", "is_admin_only": False}]

    def _copy(self, source, target):
        # A copy that was cut off is not taken for a whole one.
        new = f"{self._path(target)}.new"
        shutil.rmtree(new, ignore_errors=True)
        shutil.copytree(self._path(source), new)
        os.rename(new, self._path(target))

    def _remove(self, name):
        shutil.rmtree(self._path(name), ignore_errors=True)

    def _show(self, name):
        """Shows it to nobody."""
        if not is_shown(name):
            net_conf("addshare", name, self._path(name), "writeable=n", "guest_ok=n")
        # On the server's disk, one user owns all files: the share decides who has access.
        for key, value in {"available": "no", "force user": "root"}.items():
            net_conf("setparm", name, key, value)

    def create_share(self, context, share, share_server=None):
        os.makedirs(self._path(share["name"]), exist_ok=True)
        self._show(share["name"])
        return self._export(share)

    def create_share_from_snapshot(self, context, share, snapshot, share_server=None, parent_share=None):
        self._copy(snapshot["name"], share["name"])
        self._show(share["name"])
        return self._export(share)

    def delete_share(self, context, share, share_server=None):
        if is_shown(share["name"]):
            net_conf("delshare", share["name"])
        self._remove(share["name"])

    def ensure_share(self, context, share, share_server=None):
        return self._export(share)

    def extend_share(self, share, new_size, share_server=None):
        """Nothing limits a directory."""

    def create_snapshot(self, context, snapshot, share_server=None):
        self._copy(snapshot["share_name"], snapshot["name"])

    def delete_snapshot(self, context, snapshot, share_server=None):
        self._remove(snapshot["name"])

    def update_access(
        self, context, share, access_rules, add_rules, delete_rules, update_rules, share_server=None
    ):
        users = [rule["access_to"] for rule in access_rules if rule["access_type"] == "user"]
        writers = [rule["access_to"] for rule in access_rules if rule["access_level"] == "rw"]
        for key, value in {
            "valid users": " ".join(users),
            "write list": " ".join(writers),
            # An empty list is everybody's.
            "available": "yes" if users else "no",
        }.items():
            net_conf("setparm", share["name"], key, value)
        others = [rule for rule in access_rules if rule["access_type"] != "user"]
        return {rule["access_id"]: {"state": "error"} for rule in others}
