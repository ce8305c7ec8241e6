import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.utils import parametrizations

from omnitts.errors import InputError
from omnitts.model.weights import load_weights, merge_weight_norm


def meta_module() -> nn.Module:
    with torch.device("meta"):
        return nn.Sequential(nn.Linear(3, 4), nn.Conv1d(2, 5, 3))


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(tensor.shape, generator=generator) for name, tensor in meta_module().state_dict().items()}


def load(files, **options) -> nn.Module:
    module = meta_module()
    load_weights(module, files, **{"device": "cpu", "dtype": torch.float32} | options)
    return module


def save(folder, content, name="model.safetensors"):
    save_file(content, folder / name)
    return folder / name


def test_weights_arrive_ready_for_inference(tmp_path):
    module = load([save(tmp_path, tensors())])
    for name, parameter in module.named_parameters():
        assert torch.equal(parameter, tensors()[name])
        assert not parameter.requires_grad
    assert not module.training


def test_weights_outlive_their_file(tmp_path):
    file = save(tmp_path, tensors())
    module = load([file])
    file.write_bytes(bytes(file.stat().st_size))
    assert torch.equal(module[0].weight, tensors()["0.weight"])


def test_dtype_is_converted(tmp_path):
    half = {name: tensor.half() for name, tensor in tensors().items()}
    module = load([save(tmp_path, half)], dtype=torch.bfloat16)
    assert torch.equal(module[0].weight, half["0.weight"].bfloat16())


@pytest.mark.parametrize(("value", "dtype"), [(float("nan"), torch.float32), (1e30, torch.float16)])
def test_numbers_that_are_not_finite_are_refused(tmp_path, value, dtype):
    content = tensors()
    content["1.bias"][2] = value
    with pytest.raises(InputError, match=r"1\.bias holds numbers that are not finite, or are too large for float"):
        load([save(tmp_path, content)], dtype=dtype)


def test_several_files(tmp_path):
    first = save(tmp_path, {"0.weight": tensors()["0.weight"]}, "a.safetensors")
    rest = {name: tensor for name, tensor in tensors().items() if name != "0.weight"}
    module = load([first, save(tmp_path, rest, "b.safetensors")])
    assert torch.equal(module[0].weight, tensors()["0.weight"])
    assert torch.equal(module[1].bias, tensors()["1.bias"])

    with pytest.raises(InputError, match=r"0\.weight is in two files"):
        load([first, save(tmp_path, tensors(), "c.safetensors")])


@pytest.mark.parametrize("weight_norm", [nn.utils.weight_norm, parametrizations.weight_norm])
@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
def test_weight_norm_is_merged_as_torch_does(tmp_path, weight_norm, dim):
    conv = nn.Conv1d(2, 5, 3)
    plain = conv.weight.detach().clone()
    weight_norm(conv, dim=dim)
    stored = {f"1.{name}": tensor for name, tensor in conv.state_dict().items()}
    assert "1.weight" not in stored
    gain = next(name for name in stored if name.endswith(("weight_g", "original0")))
    stored[gain] = stored[gain] * 3
    stored |= {name: tensor for name, tensor in tensors().items() if name.startswith("0.")}
    module = load([save(tmp_path, stored)])
    torch.testing.assert_close(module[1].weight, 3 * plain, rtol=1e-5, atol=1e-6)
    assert list(module.state_dict()) == list(tensors())


def test_weight_norm_of_one_output_channel():
    direction = torch.randn(1, 2, 3)
    weight = merge_weight_norm(torch.full((1, 1, 1), 2.0), direction)
    torch.testing.assert_close(weight, 2 * direction / direction.norm())


def test_ignored_patterns(tmp_path):
    file = save(tmp_path, tensors() | {"extra.a.sum": torch.ones(1), "count": torch.ones(1, dtype=torch.int64)})
    load([file], ignored=["extra.*", "count"])
    with pytest.raises(InputError, match=r"unexpected: count$"):
        load([file], ignored=["extra.*"])


def test_all_problems_are_told_at_once(tmp_path):
    stored = tensors()
    del stored["0.bias"]
    stored["1.bias"] = torch.ones(6)
    stored["0.weight"] = torch.ones(4, 3, dtype=torch.int8)
    file = save(tmp_path, stored | {f"odd.{i}": torch.ones(1) for i in range(7)})
    with pytest.raises(InputError) as caught:
        load([file])
    message = str(caught.value)
    assert message.startswith(f"{file}: ")
    assert "missing: 0.bias" in message
    assert "unexpected: odd.0, odd.1, odd.2, odd.3 and 3 more" in message
    assert "misshapen: 1.bias [6] instead of [5]" in message
    assert "not floating-point: 0.weight (I8)" in message


@pytest.mark.parametrize(
    ("replacement", "problem"),
    [
        ({"1.weight_v": (5, 2, 3)}, "parts that do not go together: 1.weight (1.weight_v)"),
        ({"1.weight_g": (5, 1, 1)}, "parts that do not go together: 1.weight (1.weight_g)"),
        ({"1.weight_g": (5, 1, 1), "1.weight": (5, 2, 3)}, "parts that do not go together: 1.weight"),
        ({"1.weight_g": (5, 1, 1), "1.weight_v": (5, 2, 4)}, "misshapen: 1.weight [5, 2, 4] instead of [5, 2, 3]"),
        ({"1.weight_g": (4, 1, 1), "1.weight_v": (5, 2, 3)}, "misshapen: 1.weight_g [4, 1, 1] for [5, 2, 3]"),
        ({"1.weight_g": (1,), "1.weight_v": (5, 2, 3)}, "misshapen: 1.weight_g [1] for [5, 2, 3]"),
    ],
)
def test_odd_weight_norm(tmp_path, replacement, problem):
    stored = tensors()
    del stored["1.weight"]
    file = save(tmp_path, stored | {name: torch.ones(shape) for name, shape in replacement.items()})
    with pytest.raises(InputError) as caught:
        load([file])
    assert problem in str(caught.value)


def damaged_files(folder):
    whole = save(folder, tensors()).read_bytes()
    header_only = whole[: 8 + int.from_bytes(whole[:8], "little")]
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    return {"truncated": whole[:-1], "header only": header_only, "empty": b"", "git-lfs pointer": pointer}


@pytest.mark.parametrize("kind", ["truncated", "header only", "empty", "git-lfs pointer"])
def test_damaged_file(tmp_path, kind):
    file = tmp_path / "damaged.safetensors"
    file.write_bytes(damaged_files(tmp_path)[kind])
    with pytest.raises(InputError, match=r"damaged\.safetensors: not a whole safetensors file"):
        load([file])


def test_absent_file(tmp_path):
    with pytest.raises(InputError, match=r"absent\.safetensors: not a whole safetensors file"):
        load([tmp_path / "absent.safetensors"])
