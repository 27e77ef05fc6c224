"""Makes users, services and endpoints in Keystone where they are missing."""

import time

from keystoneauth1 import exceptions, session
from keystoneauth1.identity import v3

from openstack_services.log import say

DOMAIN = "default"
REGION = "RegionOne"


class Identity:
    """Keystone, as its administrator."""

    def __init__(self, url, password):
        self._url = url
        auth = v3.Password(
            url, username="admin", password=password, project_name="admin", user_domain_id=DOMAIN,
            project_domain_id=DOMAIN,
        )
        self._session = session.Session(auth=auth, timeout=60)

    def wait(self):
        """Waits until the administrator can log in; the Job has the time limit."""
        said = None
        while True:
            try:
                self._session.get_token()
                return
            except exceptions.ClientException as error:
                if str(error) != said:
                    said = str(error)
                    say(f"Keystone: {said}")
            time.sleep(1)

    def request(self, method, url, **arguments):
        """A call to any service, in a version of Manila's API that all of its releases have, from Debian 12's on."""
        headers = {"X-OpenStack-Manila-API-Version": "2.65"}
        return self._session.request(url, method, headers=headers, **arguments)

    def call(self, method, path, **body):
        """A call to Keystone's API; returns the answer's JSON, if it has one."""
        answer = self._session.request(f"{self._url}{path}", method, **({"json": body} if body else {}))
        return answer.json() if answer.content else None

    def find(self, kind, **query):
        """The id of the only object that fits, or None."""
        found = self._one(kind, **query)
        return found["id"] if found else None

    def _one(self, kind, **query):
        answer = self._session.get(f"{self._url}/{kind}s", params=query)
        return next(iter(answer.json()[f"{kind}s"]), None)

    def _ensure(self, kind, query, **more):
        found = self.find(kind, **query)
        if found is None:
            try:
                found = self.call("POST", f"/{kind}s", **{kind: {**query, **more}})[kind]["id"]
                say(f"made {kind} {query}")
            except exceptions.Conflict:
                # The bootstrap of another service was faster.
                found = self.find(kind, **query)
        return found

    def service_user(self, name, password):
        """A user that may check other users' tokens."""
        project = self._ensure("project", {"name": "service", "domain_id": DOMAIN})
        user = self._ensure("user", {"name": name, "domain_id": DOMAIN}, password=password)
        if not self._may_log_in(user, password):
            self.call("PATCH", f"/users/{user}", user={"password": password})
            say(f"changed the password of user {name}")
        for role in ("admin", "service"):
            role = self._ensure("role", {"name": role})
            self.call("PUT", f"/projects/{project}/users/{user}/roles/{role}")

    def _may_log_in(self, user, password):
        try:
            session.Session(auth=v3.Password(self._url, user_id=user, password=password), timeout=60).get_token()
            return True
        except exceptions.Unauthorized:
            return False

    def endpoint(self, name, kind, url):
        """A service in the catalogue, with one address for all interfaces."""
        service = self._ensure("service", {"name": name, "type": kind})
        for interface in ("public", "internal", "admin"):
            query = {"service_id": service, "interface": interface, "region_id": REGION}
            found = self._one("endpoint", **query)
            if found is None:
                self.call("POST", "/endpoints", endpoint={**query, "url": url})
                say(f"made the {interface} endpoint of {name}: {url}")
            elif found["url"] != url:
                self.call("PATCH", f"/endpoints/{found['id']}", endpoint={"url": url})
                say(f"changed the {interface} endpoint of {name}: {url}")
