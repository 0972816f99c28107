"""Make the files of this folder: a round of one client in another framework, saved as docs/frameworks.md says.

    python tests/observation/frameworks/make.py openfl

It runs in an environment of its own that has the framework and PyTorch, and needs nothing of undelta. The code comes
from the page itself, so that what the page prints is what was tried.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from tiny import LABEL, RATE, picture, tiny
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[2] / "docs" / "frameworks.md"
TRAINED = TensorDataset(picture(), torch.tensor([LABEL]))


def printed(title: str, number: int = 0) -> dict[str, Any]:
    """What the page's block of code below a title defines."""
    section = PAGE.read_text(encoding="utf-8").split(f"\n## {title}\n")[1].split("\n## ")[0]
    found: dict[str, Any] = {}
    exec(re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)[number], found)  # noqa: S102
    return found


def step(model: nn.Module) -> None:
    """The client's training, where the framework leaves it to the user."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    nn.functional.cross_entropy(model(picture()), torch.tensor([LABEL])).backward()
    optimizer.step()


def fedml() -> None:
    args = SimpleNamespace(client_optimizer="sgd", learning_rate=RATE, epochs=1, enable_dp=False)
    trainer = printed("FedML")["Recorded"](tiny(), args)
    told = DataLoader(TRAINED), torch.device("cpu"), args
    trainer.on_before_local_training(*told)
    trainer.train(*told)
    trainer.on_after_local_training(*told)


def openfl() -> None:
    from openfl.federated.data import PyTorchDataLoader
    from openfl.pipelines import NoCompressionPipeline
    from openfl.protocols import utils
    from openfl.utilities.types import Metric

    class Loader(PyTorchDataLoader):  # type: ignore[misc]
        def get_feature_shape(self) -> list[int]:
            return [1, 4, 4]

        def get_train_loader(self, batch_size: int | None = None, num_batches: int | None = None) -> Any:
            return DataLoader(TRAINED)

    class Runner(printed("OpenFL")["Recorded"]):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(device="cpu", data_loader=Loader(batch_size=1))
            self.opt_treatment = "RESET"
            for name, layer in tiny().named_children():
                self.add_module(name, layer)
            self.optimizer = torch.optim.SGD(self.parameters(), lr=RATE)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            for layer in self.children():
                inputs = layer(inputs)
            return inputs

        def train_(self, train_dataloader: Any) -> Any:
            step(self)
            return Metric(name="loss", value=torch.zeros(()).numpy())

    runner = Runner()
    sent = runner.get_tensor_dict()
    pipe = NoCompressionPipeline()
    utils.dump_proto(utils.construct_model_proto(sent, 0, pipe), "init.pbuf")
    runner.train_task("site", 0, sent)
    runner.save_native("output_model")
    tensors = printed("OpenFL", 1)["tensors"]  # reads init.pbuf
    assert all((tensors[name] == value).all() for name, value in sent.items())
    Path("init.npz").unlink()
    Path("init.pbuf").unlink()


def appfl() -> None:
    from omegaconf import OmegaConf

    Path("task.py").write_text(
        f"import sys\nsys.path.insert(0, {str(HERE)!r})\nimport torch\nfrom tiny import LABEL, picture, tiny\n"
        "def data():\n    return torch.utils.data.TensorDataset(picture(), torch.tensor([LABEL])), None\n"
        "def metric(truth, guess):\n    return 0.0\n"
    )
    training = {
        "trainer": "VanillaTrainer",
        "mode": "epoch",
        "num_local_epochs": 1,
        "optim": "SGD",
        "optim_args": {"lr": RATE},
        "loss_fn": "CrossEntropyLoss",
        "metric_path": "task.py",
        "metric_name": "metric",
        "train_batch_size": 1,
    }
    given = {
        "client_id": "site",
        "train_configs": training,
        "model_configs": {"model_path": str(HERE / "tiny.py"), "model_name": "tiny"},
        "data_configs": {"dataset_path": "task.py", "dataset_name": "data"},
    }
    agent = printed("APPFL")["Recorded"](OmegaConf.create(given))
    agent.load_parameters(tiny().state_dict())
    agent.train()
    agent.get_parameters()


def fedbiomed() -> None:
    from fedbiomed.common.models import TorchModel
    from fedbiomed.common.serializer import Serializer

    model = TorchModel(tiny())
    Serializer.dump(model.get_weights(only_trainable=False, exclude_buffers=False), "model_params.mpk")
    step(model.model)
    Serializer.dump(model.get_weights(only_trainable=False, exclude_buffers=False), "params_node.mpk")


def substra() -> None:
    from substrafl.algorithms.pytorch import TorchFedAvgAlgo
    from substrafl.index_generator import NpIndexGenerator

    class Data(torch.utils.data.Dataset[Any]):
        def __init__(self, data_from_opener: Any, is_inference: bool) -> None:
            self.pairs = data_from_opener

        def __len__(self) -> int:
            return len(self.pairs)

        def __getitem__(self, index: int) -> Any:
            return self.pairs[index]

    class Algo(TorchFedAvgAlgo):  # type: ignore[misc]
        def __init__(self) -> None:
            model = tiny()
            super().__init__(
                model=model,
                criterion=nn.CrossEntropyLoss(),
                optimizer=torch.optim.SGD(model.parameters(), lr=RATE),
                index_generator=NpIndexGenerator(batch_size=1, num_updates=1),
                dataset=Data,
                seed=0,
                disable_gpu=True,
            )

    algo = Algo()
    shared = algo.train(data_from_opener=TRAINED, shared_state=None, _skip=True)
    printed("Substra")["save_states"](algo, shared)


PACKAGES = {"substra": "substrafl"}
MAKERS = {function.__name__: function for function in (fedml, openfl, appfl, fedbiomed, substra)}
KEPT = ("before.*", "after.*", "*.mpk", "output_model.pt")


def main() -> None:
    """Make one framework's files."""
    (name,) = sys.argv[1:]
    target = HERE / name
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        MAKERS[name]()
        for pattern in KEPT:
            for path in Path(folder).glob(pattern):
                shutil.copy(path, target)
        os.chdir(HERE)
    package = PACKAGES.get(name, name)
    (target / "made.txt").write_text(f"{package} {version(package)}, torch {torch.__version__}\n")
    print(*sorted(path.name for path in target.iterdir()))  # noqa: T201


if __name__ == "__main__":
    main()
