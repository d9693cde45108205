"""Licence and manifest, in the shape of NVIDIA's NIMs."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from typing import Final

from auth.base import Scope
from profiles import manifest
from service.api.about.schema import LicenseInfo, Manifest
from service.api.common.operations import json_router
from service.http.paths import PathRow, Routes
from service.runtime import CurrentRuntime
from service.work import in_thread

router = json_router("Service")

OWN_LICENSE = "Apache-2.0"
_FILE = "licenses/LICENSE"  # in the distribution's folder


@router.get("/v1/license")
async def get_license() -> LicenseInfo:
    """The licence of this software, with its text."""
    return license_of(OWN_LICENSE)


@router.get("/v1/manifest")
async def get_manifest(runtime: CurrentRuntime) -> Manifest:
    """The catalogue as a NIM's model manifest: profiles with their tags, files and SHA-256."""
    return Manifest(
        manifest_file=await in_thread(manifest.text),
        repository_override=runtime.model.repository_override,
    )


@cache
def license_of(name: str) -> LicenseInfo:
    """A licence by its SPDX name; with its text where it is the one that this software has."""
    url = f"https://spdx.org/licenses/{name}.html"
    try:
        own = distribution("harmonium")
    except PackageNotFoundError:  # a checkout that was never installed
        return LicenseInfo(name=name, url=url)
    content = own.read_text(_FILE) if name == OWN_LICENSE else None
    if content is None:
        return LicenseInfo(name=name, url=url)
    path = next((each for each in own.files or () if str(each).endswith(_FILE)), None)
    return LicenseInfo(
        name=name,
        url=url,
        path="" if path is None else str(own.locate_file(path)),
        sha=hashlib.sha1(content.encode(), usedforsecurity=False).hexdigest(),
        size=len(content),
        type="file",
        content=content,
    )


ROUTES: Final = Routes(
    rows=(PathRow("/v1/license", Scope.MODELS), PathRow("/v1/manifest", Scope.MODELS)),
    router=router,
    rank=70,
)
