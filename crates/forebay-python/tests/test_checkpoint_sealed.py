"""Sealed checkpoints: who has a key reads them, and nobody else."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import forebay
import pytest

numpy = pytest.importorskip("numpy")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "run"


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert set(found) == set(expected)
    for name, value in expected.items():
        numpy.testing.assert_array_equal(found[name], value)


def test_sealed_states_need_their_key(place: Path, tmp_path: Path) -> None:
    keys = []
    for name in ("one", "other"):
        key = tmp_path / name
        key.write_bytes(bytes(range(32)) if name == "one" else bytes(32))
        key.chmod(0o600)
        keys.append(str(key))
    given = {"secret": numpy.full(5000, 77, dtype="uint8"), "w": numpy.arange(9000.0)}
    with forebay.Checkpointer(place, key=keys[0]) as ckpt:
        ckpt.save(1, given).wait()
        assert_same(ckpt.load(framework="numpy"), given)
        assert "aes-256-gcm" in ckpt.checkpoints()[0]["features"]
    assert not any(bytes([77]) * 100 in path.read_bytes() for path in place.rglob("*.chunks"))
    for options in ({}, {"key": keys[1]}):
        with forebay.Checkpointer(place, **options) as ckpt, pytest.raises(forebay.ForebayError, match="key"):
            ckpt.load(framework="numpy")
    with forebay.Checkpointer(place, key=keys) as ckpt:
        assert_same(ckpt.load(framework="numpy"), given)


@pytest.fixture
def kms(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """What AWS KMS does, without the cryptography; gives what it was asked."""
    asked: list[dict[str, Any]] = []

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            question = json.loads(self.rfile.read(int(self.headers["content-length"])))
            asked.append(question)
            status, reply = 200, {"KeyId": "arn:aws:kms:us-east-1:1:key/k"}
            if self.headers["x-amz-target"] == "TrentService.Encrypt":
                reply["CiphertextBlob"] = base64.b64encode(json.dumps(question).encode()).decode()
            else:
                wrapped = json.loads(base64.b64decode(question["CiphertextBlob"]))
                reply["Plaintext"] = wrapped["Plaintext"]
                if any(wrapped[name] != question[name] for name in ("KeyId", "EncryptionContext")):
                    status, reply = 400, {"__type": "IncorrectKeyException"}
            body = json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL_KMS", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    yield asked
    server.shutdown()
    server.server_close()


def test_states_are_sealed_by_keys_of_aws_kms(place: Path, kms: list[dict[str, Any]]) -> None:
    given = {"w": numpy.arange(9000.0)}
    with forebay.Checkpointer(place, key="aws-kms:alias/training") as ckpt:
        ckpt.save(1, given).wait()
        attempt = ckpt.checkpoints()[0]["attempt"]
        assert kms[0]["KeyId"] == "alias/training"
        assert kms[0]["EncryptionContext"] == {"forebay-attempt": attempt}
        assert_same(ckpt.load(framework="numpy"), given)
    refused = pytest.raises(forebay.PermissionDeniedError, match="arn:aws:kms:us-east-1:1:key/k")
    with forebay.Checkpointer(place, key="aws-kms:alias/other") as ckpt, refused:
        ckpt.load(framework="numpy")


def test_a_key_service_by_others_opens_what_it_wrapped(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs where moto and boto3 are installed: its KMS checks key and context, as that of AWS does."""
    moto = pytest.importorskip("moto.server")
    boto3 = pytest.importorskip("boto3")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        url = f"http://127.0.0.1:{server.get_host_and_port()[1]}"
        monkeypatch.setenv("AWS_ENDPOINT_URL_KMS", url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        service = boto3.client("kms", endpoint_url=url, region_name="us-east-1")
        key, other = (service.create_key()["KeyMetadata"] for _ in range(2))
        service.create_alias(AliasName="alias/training", TargetKeyId=key["KeyId"])
        given = {"w": numpy.arange(9000.0)}
        names = ["alias/training", key["Arn"], key["KeyId"]]
        for step, name in enumerate(names):
            with forebay.Checkpointer(place, key=f"aws-kms:{name}") as ckpt:
                ckpt.save(step, given).wait()
                assert_same(ckpt.load(framework="numpy"), given)
        refused = pytest.raises(forebay.PermissionDeniedError, match=key["Arn"])
        with forebay.Checkpointer(place, key=f"aws-kms:{other['KeyId']}") as ckpt, refused:
            ckpt.load(framework="numpy")
        refused = pytest.raises(forebay.NotFoundError, match="alias/none")
        with forebay.Checkpointer(place, key="aws-kms:alias/none") as ckpt, refused:
            ckpt.save(len(names), given).wait()
    finally:
        server.stop()
