"""Tokens through `tidegate serve` as processes: two workers, a real issuer, and what operators see of it."""

import asyncio
import time
from pathlib import Path

import httpx
import pytest

from backends.simengine import SimEngine, SimSettings
from tests.e2e.test_serve import ask, serving
from tests.issuer import claims_of, issuer, signer
from tests.timing import HANG_S

AUTH = """
auth:
  jwt:
    - issuer: {url}
      audiences: [tidegate]
      tenant: {{claim: [groups], map: {{llm-acme: acme, llm-gone: gone}}}}
"""


@pytest.mark.slow
async def test_processes_take_tokens_and_tell_of_their_issuers(tmp_path: Path) -> None:
    one = signer("k1")
    async with issuer(one) as idp, SimEngine(SimSettings(models=("sim",), speed=1000)) as engine:
        async with serving(tmp_path, engine.url, workers=2, more=AUTH.format(url=idp.url)) as served:
            claims = claims_of(time.time()) | {"iss": idp.url}
            good, gone = (one.token(**claims | {"groups": ["staff", group]}) for group in ("llm-acme", "llm-gone"))
            async with httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client:

                async def status(token: str) -> int:
                    headers = {"authorization": f"Bearer {token}", "connection": "close"}
                    return (await client.post(f"{served.url}/v1/chat/completions", json=ask(), headers=headers)).status_code

                assert [await status(good) for _ in range(10)] == [200] * 10
                assert [await status(token) for token in (gone, good[:-4], good + "A")] == [401] * 3
                async with asyncio.timeout(HANG_S):
                    while 'outcome="unknown_tenant"' not in (text := (await client.get(f"{served.admin}/metrics")).text):
                        await asyncio.sleep(0.1)
            assert f'tidegate_jwks_keys{{issuer="{idp.url}"}} 1.0' in text
            assert f'tidegate_jwks_age_seconds{{issuer="{idp.url}"}}' in text
        served.process.wait(20)
    said = (tmp_path / "out.log").read_text() + (tmp_path / "err.log").read_text()
    assert '"key_id":"jwt:' in said
    assert [secret for secret in (good, gone, good.split(".")[1], "user-1") if secret in said] == []
