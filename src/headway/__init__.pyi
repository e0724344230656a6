from headway import api as api
from headway.api import certify as certify
from headway.api import evaluate as evaluate
from headway.api import export as export
from headway.api import find_run as find_run
from headway.api import generate as generate
from headway.api import plan as plan
from headway.api import prepare as prepare
from headway.api import resume as resume
from headway.api import runs as runs
from headway.api import stop as stop
from headway.api import train as train
from headway.errors import HeadwayError as HeadwayError
from headway.train.given import Loss as Loss

__version__: str
