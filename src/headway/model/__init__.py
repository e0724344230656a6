"""Where models come from: transformers, a user's factory, an adapter beside either."""

import logging

# PEFT imports bitsandbytes where it is installed, which on CPUs with bf16 instructions asks, on every rank's screen,
# for a package of kernels for inference that nothing here uses.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
