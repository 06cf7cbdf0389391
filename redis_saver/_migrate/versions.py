"""Which values to send with a checkpoint: most savers store each version of a channel once in a thread."""

from __future__ import annotations

from langgraph.checkpoint.base import ChannelVersions

from redis_saver._common.display import shown
from redis_saver._migrate.records import Record, with_text_versions, with_versions
from redis_saver._storage.opaque import fingerprint
from redis_saver.errors import ThreadMigrationError


class Versions:
    """The versions of a thread that were seen, from its oldest checkpoint on, and their values.

    In a saver that stores all values with each checkpoint, such as `SqliteSaver`, a version may have more than one value: a node changed the state
    that it was given, instead of returning a change; or two branches made the same version. All values but the first get a version of their own,
    just above.
    """

    def __init__(self, *, texts: bool) -> None:
        """Begin. `texts` is whether the target continues versions as texts; if not, versions stay as they are."""
        self._texts = texts
        self._values: dict[tuple[str, str, str | float], bytes] = {}
        """Fingerprints, by namespace, channel and version."""

    def seen(self, found: Record) -> tuple[Record, ChannelVersions]:
        """The checkpoint in the form to store, and the versions in it whose values were not seen before.

        Raises:
            ThreadMigrationError: A value has no version.
        """
        one = with_text_versions(found) if self._texts else found
        versions, others, new = one.checkpoint["channel_versions"], dict[str, str](), ChannelVersions()
        for channel, value in one.checkpoint["channel_values"].items():
            if channel not in versions:
                raise ThreadMigrationError(
                    f"{one} has a value of channel {shown(channel)} without a version, so other savers cannot store it"
                )
            version, printed = versions[channel], fingerprint(value) if self._texts else b""
            if self._values.get((one.key[0], channel, version), printed) != printed:
                version = others[channel] = f"{version}.~{printed.hex()}"
            if (one.key[0], channel, version) not in self._values:
                self._values[one.key[0], channel, version] = printed
                new[channel] = version
        return (with_versions(one, others) if others else one), new
