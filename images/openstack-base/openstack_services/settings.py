"""A service's settings, as its own processes read them: the files of /etc/SERVICE/SERVICE.conf.d, later ones first."""

import configparser
import glob
import urllib.parse


class Settings:
    """The settings of one service."""

    def __init__(self, service):
        self.service = service
        self._parser = configparser.ConfigParser(interpolation=None, strict=False, default_section="\0")
        files = sorted(glob.glob(f"/etc/{service}/{service}.conf.d/*.conf"))
        self._parser.read(files)

    def get(self, section, key):
        """A value, or None."""
        return self._parser.get(section, key, fallback=None)

    def database(self):
        """How to reach the database: arguments of pymysql.connect."""
        url = urllib.parse.urlsplit(self._needed("database", "connection"))
        return {
            "host": url.hostname,
            "port": url.port or 3306,
            "user": urllib.parse.unquote(url.username or ""),
            "password": urllib.parse.unquote(url.password or ""),
            "database": url.path.lstrip("/"),
        }

    def queue(self):
        """How to reach the queue: arguments of amqp.Connection. With several servers, the first."""
        first = self._needed("DEFAULT", "transport_url").split(",")[0]
        url = urllib.parse.urlsplit(first)
        return {
            "host": f"{url.hostname}:{url.port or 5672}",
            "userid": urllib.parse.unquote(url.username or ""),
            "password": urllib.parse.unquote(url.password or ""),
            "virtual_host": url.path.lstrip("/") or "/",
        }

    def _needed(self, section, key):
        value = self.get(section, key)
        if not value:
            raise SystemExit(f"{self.service} has no {key} in section {section}")
        return value
