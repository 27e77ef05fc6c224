"""Whether what a service needs is there. Each check raises what is wrong."""

import contextlib

import amqp
import pymysql

# Seconds. A probe waits longer.
LIMIT = 3


def row(settings, query):
    """Asks the database, and returns the first row, or None."""
    limits = {"connect_timeout": LIMIT, "read_timeout": LIMIT, "write_timeout": LIMIT}
    with contextlib.closing(pymysql.connect(**settings.database(), **limits)) as connection:
        with connection.cursor() as cursor:
            cursor.execute(query)
            return cursor.fetchone()


def database(settings, query="SELECT 1"):
    """Asks the database, and returns the first value, or None."""
    found = row(settings, query)
    return found[0] if found else None


def queue(settings, name=None):
    """Logs in to the queue. With a name, returns how many processes take messages from that queue."""
    limits = {"connect_timeout": LIMIT, "read_timeout": LIMIT, "write_timeout": LIMIT}
    with amqp.Connection(**settings.queue(), **limits) as connection:
        channel = connection.channel()
        if name is None:
            return None
        return channel.queue_declare(name, passive=True).consumer_count
