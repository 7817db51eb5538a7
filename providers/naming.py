"""Our tag where a company has names only, and what of an account's listing is ours.

The text is `gpujob.DEPLOYMENT.RENTAL.JOB.OWNER.REGION`; parts may be empty. The region is the one that we asked for:
what a listing files a machine under must not hang on the company's word, which may come late or never.
"""

from __future__ import annotations

import re

from providers.base import Instance, Listing, ProviderConfig, Resource, Tag
from providers.errors import Invalid

TAG_WORD = "gpujob"


def tag_text(tag: Tag, region: str) -> str:
    """The tag where there are only names: `gpujob.DEPLOYMENT.RENTAL.JOB.OWNER.REGION`, parts may be empty.

    The region is the one that we asked for: what a listing files a machine under must not hang on the provider's word.
    """
    return ".".join((TAG_WORD, tag.deployment, tag.rental, tag.job, tag.owner, region))


def read_tag_text(text: object) -> tuple[Tag, str] | None:
    """(tag, region) of a name of ours, else None."""
    parts = text.split(".", 5) if isinstance(text, str) else []
    if len(parts) != 6 or parts[0] != TAG_WORD or not all(re.fullmatch(r"[a-z0-9-]*", part) for part in parts[1:5]):
        return None
    return (Tag(parts[1], parts[2], parts[3], parts[4]), parts[5]) if parts[1] and parts[2] else None


def check_tag(tag: Tag, config: ProviderConfig, provider: str) -> None:
    """Raises `Invalid` for a tag that could not be read back."""
    if tag.deployment != config.deployment or read_tag_text(tag_text(tag, "")) != (tag, ""):
        raise Invalid(f"{tag} is no tag of deployment {config.deployment!r}", provider=provider, what="create")


def ours(listing: Listing, deployment: str, region: str) -> Listing:
    """The part of an account's listing that is this deployment's in one region."""

    def is_ours(thing: Instance | Resource) -> bool:
        return thing.tag is not None and thing.tag.deployment == deployment and thing.ref.region == region

    return Listing(tuple(filter(is_ours, listing.instances)), tuple(filter(is_ours, listing.others)))
