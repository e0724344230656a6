"""Tar archives and TFRecord files, written by other libraries than the ones under test."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest


def write_tar(path: Path, members: Mapping[str, bytes], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def write_tfrecord(path: Path, records: Sequence[Mapping[str, str | float | bytes | list[int]]]) -> Path:
    """By TensorBoard's writer of frames, and protobuf's own classes of tf.train.Example."""
    pytest.importorskip("tensorboard", reason="TFRecord files are written by the extra 'tensorboard'")
    from tensorboard.summary.writer.record_writer import RecordWriter

    with path.open("wb") as file:
        writer = RecordWriter(file)
        for record in records:
            example = _example_class()()
            for key, value in record.items():
                feature = example.features.feature[key]
                if isinstance(value, int | list):
                    feature.int64_list.value.extend(value if isinstance(value, list) else [value])
                    feature.int64_list.SetInParent()
                elif isinstance(value, float):
                    feature.float_list.value.append(value)
                else:
                    feature.bytes_list.value.append(value.encode() if isinstance(value, str) else value)
            writer.write(example.SerializeToString())
        writer.flush()
    return path


@cache
def _example_class() -> Any:
    """tf.train.Example from its published definition (feature.proto, example.proto)."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="example_for_tests.proto", package="tests", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto

    def message(name: str, *fields: tuple[str, int, int, bool, str], into: Any = None) -> Any:
        made = (into.nested_type if into else file.message_type).add(name=name)
        for field, number, kind, repeated, of in fields:
            label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
            made.field.add(name=field, number=number, type=kind, label=label, type_name=of or None)
        return made

    message("BytesList", ("value", 1, kinds.TYPE_BYTES, True, ""))
    message("FloatList", ("value", 1, kinds.TYPE_FLOAT, True, ""))
    message("Int64List", ("value", 1, kinds.TYPE_INT64, True, ""))
    inner = kinds.TYPE_MESSAGE
    names = ("bytes_list", "float_list", "int64_list")
    kept = (".tests.BytesList", ".tests.FloatList", ".tests.Int64List")
    message("Feature", *((name, n + 1, inner, False, kept[n]) for n, name in enumerate(names)))
    features = message("Features", ("feature", 1, inner, True, ".tests.Features.FeatureEntry"))
    parts = (("key", 1, kinds.TYPE_STRING, False, ""), ("value", 2, inner, False, ".tests.Feature"))
    entry = message("FeatureEntry", *parts, into=features)
    entry.options.map_entry = True
    message("Example", ("features", 1, inner, False, ".tests.Features"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tests.Example"))
