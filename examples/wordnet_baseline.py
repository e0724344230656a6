"""What simpler methods reach on the glosses of examples/wordnet.py: the largest class, and TF-IDF with a linear model.

pip install scikit-learn
python examples/wordnet_baseline.py data
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections import Counter
from pathlib import Path


def read(path: Path) -> tuple[list[str], list[str]]:
    """(texts, labels)."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [row["text"] for row in rows], [row["label"] for row in rows]


def measure(data: Path) -> dict[str, tuple[float, float]]:
    """Method -> (accuracy, macro F1) on the held-out glosses, learnt from all the others."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import accuracy_score, f1_score

    texts, labels = read(data / "glosses.jsonl")
    held_texts, held_labels = read(data / "glosses-eval.jsonl")
    most = Counter(labels).most_common(1)[0][0]
    words = TfidfVectorizer(sublinear_tf=True, min_df=2)
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):  # further steps change no figure here
        linear = LogisticRegression(C=10, max_iter=100).fit(words.fit_transform(texts), labels)
    guesses = {
        "largest class": [most] * len(held_labels),
        "TF-IDF + logistic regression": list(linear.predict(words.transform(held_texts))),
    }
    return {
        name: (
            float(accuracy_score(held_labels, guessed)),
            float(f1_score(held_labels, guessed, average="macro", zero_division=0)),
        )
        for name, guessed in guesses.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?", default=Path("data"))
    for name, (accuracy, macro_f1) in measure(parser.parse_args().data).items():
        print(f"{name}: accuracy {accuracy:.3f}, macro F1 {macro_f1:.3f}")


if __name__ == "__main__":
    main()
