"""Model archives: what is in them, how they are written, found, fetched and unpacked.

    manifest.py      MAR-INF/MANIFEST.json, read and written
    model_config.py  model-config.yaml, typed
    unpack.py        .mar and .tar.gz into a directory, with nothing believed
    urls.py          what may be fetched, and under which name it is stored
    fetch.py         http(s) and file urls into the model store
    s3.py            the signature that encrypted S3 objects need
    store.py         ModelStore: from the url of a registration to an Archive on disk
    ledger.py        what to delete after a server that was killed
    write.py         torch-model-archiver

Everything here blocks: the server calls it in a thread.
"""
