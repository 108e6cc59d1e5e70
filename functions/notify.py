from functools import partial
from typing import Final

from platform_site.background import dispatch
from platform_site.background.debounce import Debouncer

after_commit: Final = Debouncer("function-wakeups", partial(dispatch.send_now, "functions.tasks.work")).after_commit
