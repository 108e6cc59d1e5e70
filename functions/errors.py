from platform_site.http.errors import Conflict, NotFound, RateLimited


class NoSuchFunction(NotFound):
    message = "There is no such function in this environment."


class NoSuchRun(NotFound):
    message = "There is no such run of this function."


class RunEnded(Conflict):
    message = "The run has ended; there is nothing to cancel."


class TooManyRuns(RateLimited):
    def __init__(self, limit: int, *, of_anonymous: bool = False) -> None:
        runs = "runs for publishable keys" if of_anonymous else "runs"
        shared = " Client networks share them." if of_anonymous else ""
        super().__init__(1, f"The plan allows {limit} {runs} at the same time.{shared}")


class TooManyCalls(RateLimited):
    def __init__(self, seconds: float, *, is_queue_full: bool) -> None:
        if is_queue_full:
            why = "Too many calls wait for the functions of this environment"
        else:
            why = f"No concurrency slot was free within the function's timeout of {seconds:g} s"
        super().__init__(1, f"{why}. Try again later, or queue the run with async: true.")


class TooManyQueued(RateLimited):
    def __init__(self, limit: str, whose: str, why: str) -> None:
        super().__init__(10, f"The plan allows {limit} {whose}. {why}")


class NoSuchEndpoint(NotFound):
    message = "There is no such endpoint."


class ForUsersOnly(Conflict):
    message = 'This function can only be invoked by users ("invoke": "user"), so it cannot have an inbound endpoint.'
