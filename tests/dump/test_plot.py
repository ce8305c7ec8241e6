import sys

import numpy as np
import pytest
import soundfile

from omnitts.dump.recording import Recording, find_audio
from tests.dump.conftest import make_dump, write
from tests.dump.test_show import without_steps

matplotlib = pytest.importorskip("matplotlib")


@pytest.fixture
def tone(tmp_path):
    path = tmp_path / "a.wav"
    soundfile.write(path, np.sin(np.arange(24000) / 20) / 2, 24000)
    return path


def axes_of(made, audio=None):
    from omnitts.dump.plot import draw

    figure = draw(made, audio)
    return [axes for axes in figure.axes if axes.get_title(loc="left")], figure


def test_pictures_are_written(run, tmp_path):
    path = write(tmp_path, make_dump())
    for name, start in (("a.png", b"\x89PNG"), ("b.svg", b"<?xml"), ("c.PNG", b"\x89PNG")):
        says = f"{tmp_path / name}: a, no audio found beside the dump\n"
        assert run("dump", "plot", path, "-o", tmp_path / name) == (0, says, "")
        assert (tmp_path / name).read_bytes().startswith(start)
    assert "matplotlib.pyplot" not in sys.modules


@pytest.mark.parametrize("frames", [1, 25, 2500])
@pytest.mark.parametrize("every", [1, 3, 9])
def test_panels_show_time_and_codebooks(frames, every):
    made = make_dump(frames=frames, every=every)
    (order, certainty, by_step), _ = axes_of(made)
    assert order.get_xlim() == certainty.get_xlim() == (0, frames / 25)
    image = order.images[0].get_array()
    assert image.shape[0] == 8 and image.shape[1] <= 2000 and not image.mask.any()
    assert by_step.images[0].get_array().shape == (8, 8)
    assert (
        bool(certainty.images[0].get_array().mask.any())
        == (every > 1)
        == ("not dumped" in certainty.get_title(loc="left"))
    )


def test_audio_gets_a_panel(run, tmp_path, tone):
    made = make_dump()
    wave = np.sin(np.arange(24000) / 20).astype(np.float32)
    panels, _ = axes_of(made, (wave, 24000))
    assert len(panels) == 4 and panels[0].get_xlim() == (0, 1)
    assert find_audio(tmp_path / "a.dump.safetensors") == Recording(tone)
    assert find_audio(tmp_path / "b.dump.safetensors") is None
    path = write(tmp_path, made)
    assert run("dump", "plot", path, "-o", tmp_path / "with.png")[0] == 0
    tone.rename(tmp_path / "other.wav")
    assert run("dump", "plot", path, "-o", tmp_path / "without.png")[0] == 0
    assert run("dump", "plot", path, "-o", tmp_path / "given.png", "--wav", tmp_path / "other.wav")[0] == 0
    sizes = [(tmp_path / f"{name}.png").stat().st_size for name in ("with", "without", "given")]
    assert sizes[0] == sizes[2] > sizes[1]


def test_no_step_and_texts_of_all_kinds(run, tmp_path):
    for text in ("costs $5 or $x^{", "", "你好,世界", "x" * 400, "a\nb"):
        path = write(tmp_path, without_steps(make_dump(text=text)))
        code, _, said = run("dump", "plot", path, "-o", tmp_path / "a.png")
        assert (code, said) == (0, "")


def test_what_cannot_be_drawn(run, tmp_path, monkeypatch):
    path = write(tmp_path, make_dump())
    code, _, said = run("dump", "plot", path, "-o", tmp_path / "a.png", "--wav", tmp_path / "none.wav")
    assert code == 2 and "no such file" in said and said.count("\n") == 1
    code, _, said = run("dump", "plot", write(tmp_path, make_dump("b", frames=0)), "-o", tmp_path / "a.png")
    assert code == 2 and "b has no frames" in said
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, _, said = run("dump", "plot", path, "-o", tmp_path / "a.png")
    assert code == 2 and said == "error: pictures need matplotlib: pip install matplotlib, or the extra plot\n"
    assert not (tmp_path / "a.png").exists()
