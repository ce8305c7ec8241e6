import base64
import io
import re

import numpy as np
import pytest
import soundfile

from omnitts.dump.recording import Recording, compact_audio
from omnitts.encoding import AudioOptions, write_audio
from omnitts.layout import Layout
from tests.dump.conftest import make_dump, write
from tests.dump.test_show import without_steps


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "dumps"
    folder.mkdir()
    return folder


def sound(path, seconds=1.0):
    wave = (np.sin(np.arange(int(24000 * seconds)) / 20) / 2).astype(np.float32)
    write_audio(path, wave, 24000, AudioOptions(path.suffix[1:]))
    return path


def test_a_page_of_all(run, folder, tmp_path):
    for number in range(3):
        write(folder, make_dump(f"line-{number}", seed=number, text=f"Text {number}"))
    sound(folder / "line-0.wav")
    sound(folder / "line-1.ogg")
    out = tmp_path / "report.html"
    assert run("dump", "report", folder, "-o", out) == (0, f"{out}: 3 dumps\n", "")
    page = out.read_text(encoding="utf-8")
    assert page.count("<tr data-number=") == 3 and "<!-- rows" not in page and "<!-- summary" not in page
    assert re.findall(r'id="audio-(\d)" data-kind="([a-z/]+)"', page) == [("0", "audio/mpeg"), ("1", "audio/ogg")]
    stored = re.search(r'id="audio-0"[^>]*>([^<]*)<', page)[1]
    assert soundfile.info(io.BytesIO(base64.b64decode(stored))).frames >= 24000
    picture = re.search(r'data-cells="([^"]*)" data-codebooks="8"', page)[1]
    assert len(base64.b64decode(picture)) == 2 * 8 * 12
    assert not re.search(r"https?://|src=|href=|@import|url\(", page)


def test_texts_are_escaped(run, folder, tmp_path):
    nasty = '</script><script>alert("1")</script><!-- rows --> & \x00'
    write(folder, make_dump("a&b<c>'d", text=nasty, error="<i>broken"))
    out = tmp_path / "report.html"
    assert run("dump", "report", folder, "-o", out)[0] == 0
    page = out.read_text(encoding="utf-8")
    assert "alert(" in page and "<script>alert" not in page and "<i>" not in page
    assert "&lt;/script&gt;" in page and "a&amp;b&lt;c&gt;" in page and "no audio: &lt;i&gt;broken" in page


def test_audio_from_another_folder(run, folder, tmp_path):
    write(folder, make_dump())
    wavs = tmp_path / "wavs"
    out = tmp_path / "report.html"
    code, _, said = run("dump", "report", folder, "--wavs", wavs, "-o", out)
    assert code == 2 and "--wavs" in said and "no such folder" in said and said.count("\n") == 1 and not out.exists()
    wavs.mkdir()
    audio = sound(wavs / "a.flac")
    assert run("dump", "report", folder, "--wavs", wavs, "-o", out)[0] == 0
    assert 'id="audio-0"' in out.read_text(encoding="utf-8")
    nested = wavs / f"{Layout(2).stem('a')}.flac"
    nested.parent.mkdir(parents=True)
    audio.rename(nested)
    assert run("dump", "report", folder, "--wavs", wavs, "-o", out)[0] == 0
    assert 'id="audio-0"' in out.read_text(encoding="utf-8")


def test_long_audio_is_small(tmp_path):
    kind, data = compact_audio(Recording(sound(tmp_path / "a.wav", 10)))
    assert kind == "audio/mpeg" and len(data) < 70_000


def test_a_damaged_file_costs_no_other(run, folder, tmp_path):
    write(folder, make_dump("good"))
    whole = write(folder, make_dump("bad")).read_bytes()
    (folder / "bad.dump.safetensors").write_bytes(whole[: len(whole) // 2])
    (folder / "good.wav").write_bytes(b"no audio")
    out = tmp_path / "report.html"
    code, _, said = run("dump", "report", folder, "-o", out)
    assert code == 1 and said.count("warning: ") == said.count("\n") == 2
    assert "bad.dump.safetensors" in said and "good.wav" in said
    page = out.read_text(encoding="utf-8")
    assert "2 files could not be read" in page and page.count("<tr data-number=") == 1
    assert "bad.dump.safetensors" in page and "good.wav" in page
    (folder / "good.dump.safetensors").unlink()
    out.unlink()
    code, _, said = run("dump", "report", folder, "-o", out)
    assert code == 2 and "none of the dumps" in said and said.count("\n") == 1 and not out.exists()


def test_what_is_not_known_is_a_dash(run, folder, tmp_path):
    write(folder, without_steps(make_dump()))
    write(folder, make_dump("b", frames=0))
    out = tmp_path / "report.html"
    assert run("dump", "report", folder, "-o", out)[0] == 0
    page = out.read_text(encoding="utf-8")
    assert page.count('data-value="">-</td>') == 2 + 3 and "nan" not in page and "no frames" in page
