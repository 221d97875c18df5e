"""Images: what a run needs, fetched with patience, within a disk budget."""

from envs.images.backend import FetchingBackend
from envs.images.faults import (
    ImageDenied,
    ImageFault,
    ImageNotFound,
    ImageRefused,
    NoSpace,
    RegistryBusy,
    RegistryTrouble,
)
from envs.images.names import ImageName
from envs.images.plan import ImagePlan, Need, make_plan
from envs.images.settings import ImageSettings
from envs.images.store import ImageStore

__all__ = [
    "FetchingBackend",
    "ImageDenied",
    "ImageFault",
    "ImageName",
    "ImageNotFound",
    "ImagePlan",
    "ImageRefused",
    "ImageSettings",
    "ImageStore",
    "Need",
    "NoSpace",
    "RegistryBusy",
    "RegistryTrouble",
    "make_plan",
]
