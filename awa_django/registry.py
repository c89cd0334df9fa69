"""Job kinds: which function runs a kind, and how jobs of it are made.

:func:`job` turns a module-level function into a :class:`JobKind`, which is called like the function and
enqueues jobs of its kind. ``registry`` maps every kind of this process to its JobKind.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, is_dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar, overload

from asgiref.sync import sync_to_async

from awa_django import followups
from awa_django.encoding import (
    Decoder,
    annotations_of,
    decoder,
    encode,
    members_decoder,
    named,
    names_fault,
)
from awa_django.enqueue import Enqueued, OnConflict, OnInvalid, store, store_many
from awa_django.errors import ConfigurationError, InvalidJob
from awa_django.jobs import DEFAULT_MAX_ATTEMPTS, DEFAULT_PRIORITY, Job, JobInsert, JsonValue
from awa_django.partitions import ordering_key_bytes
from awa_django.transitions import Event
from awa_django.uniqueness import Unique
from awa_django.validation import (
    checked_kind,
    checked_max_attempts,
    checked_metadata,
    checked_priority,
    checked_queue,
    checked_run_at,
    checked_tags,
    validated,
)

__all__ = [
    "BoundJob",
    "Descriptor",
    "JobKind",
    "JobOptions",
    "Registry",
    "checked_args_type",
    "derive_kind",
    "job",
    "registry",
]

P = ParamSpec("P")
R = TypeVar("R")
Made = TypeVar("Made", bound=Callable[..., Any])

#: A handler's ``ctx`` is recognised by this name, or by an annotation of this class.
CONTEXT_NAME, CONTEXT_CLASS = "ctx", "JobContext"


def derive_kind(class_name: str) -> str:
    """The kind of a class, as every awa client derives it (contract: api/producing section 3).

    >>> derive_kind("SendReceipt"), derive_kind("HTMLToPDF"), derive_kind("S3Upload")
    ('send_receipt', 'html_to_pdf', 's3_upload')
    """
    parts: list[str] = []
    for index, char in enumerate(class_name):
        if not char.isupper():
            parts.append(char)
            continue
        if index:
            before, after = class_name[index - 1], class_name[index + 1 : index + 2]
            if (
                before.islower()
                or (before.isascii() and before.isdigit())
                or (before.isupper() and after.islower())
            ):
                parts.append("_")
        parts.append(char.lower()[0])
    return "".join(parts)


@dataclass(frozen=True, slots=True)
class JobOptions:
    """How jobs are stored, checked when it is made. ``run_at`` as a timedelta counts from each enqueue."""

    queue: str = "default"
    priority: int = DEFAULT_PRIORITY
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    run_at: datetime | timedelta | None = None
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict, repr=False)
    unique: Unique | None = None
    ordering_key: bytes | None = None
    using: str | None = None
    on_conflict: OnConflict = "holder"

    def changed(self, changes: Mapping[str, Any]) -> JobOptions:
        """The same options with some changed; raises ``InvalidJob`` naming the one that is wrong."""
        values: dict[str, Any] = {}
        for name, value in changes.items():
            check = _OPTION_CHECKS.get(name)
            if check is None:
                raise InvalidJob(name, f"unknown option; known are {', '.join(sorted(_OPTION_CHECKS))}")
            values[name] = check(value)
        return replace(self, **values)


def _run_at_option(value: Any) -> Any:
    # A timedelta is checked here and counted at each enqueue.
    checked = checked_run_at(value)
    return value if isinstance(value, timedelta) else checked


def _ordering_key_option(value: Any) -> bytes | None:
    return None if value is None else ordering_key_bytes(value)


def _using_option(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise InvalidJob("using", f"the alias of a database is needed, not {value!r}")
    return value


def _on_conflict_option(value: Any) -> Any:
    if value not in typing.get_args(OnConflict):
        raise InvalidJob(
            "on_conflict",
            f"one of {', '.join(map(repr, typing.get_args(OnConflict)))} is needed, not {value!r}",
        )
    return value


_OPTION_CHECKS: Mapping[str, Callable[[Any], Any]] = {
    "queue": checked_queue,
    "priority": checked_priority,
    "max_attempts": checked_max_attempts,
    "run_at": _run_at_option,
    "tags": checked_tags,
    "metadata": checked_metadata,
    "unique": Unique.of,
    "ordering_key": _ordering_key_option,
    "using": _using_option,
    "on_conflict": _on_conflict_option,
}


class Descriptor(NamedTuple):
    """What people read about a kind."""

    display_name: str | None = None
    description: str | None = None
    owner: str | None = None
    docs_url: str | None = None


class BoundJob:
    """A kind with options: what :meth:`JobKind.using` returns. Immutable, so it can be kept and shared."""

    __slots__ = ("_kind", "options")

    def __init__(self, kind: JobKind[Any, Any], options: JobOptions) -> None:
        self._kind = kind
        self.options = options

    def __repr__(self) -> str:
        return f"<{self._kind.kind} with {self.options}>"

    def using(self, **changes: Any) -> BoundJob:
        """The same kind with other options: ``queue``, ``run_at``, ``priority``, ``max_attempts``, ``tags``,
        ``metadata``, ``unique``, ``ordering_key``, ``using`` (a database alias), ``on_conflict``."""
        return BoundJob(self._kind, self.options.changed(changes))

    def request(self, /, *instance: Any, **args: Any) -> JobInsert:
        """The job as a value, checked and not stored; for follow-ups, model signals and batches."""
        return self._kind.make(self.options, instance, args)

    # `Any` beside `Job` because on_conflict="skip" answers None, which most callers never ask for.
    def enqueue(self, /, *instance: Any, **args: Any) -> Job | Any:
        """Store one job in the caller's transaction; see :func:`awa_django.enqueue.enqueue`.

        Arguments are given by name, or as one instance of the kind's ``args`` class.
        """
        return store(
            self._kind.make(self.options, instance, args),
            using=self.options.using,
            on_conflict=self.options.on_conflict,
        )

    async def aenqueue(self, /, *instance: Any, **args: Any) -> Job | Any:
        """:meth:`enqueue` from async code, on the connection that Django gives the calling context."""
        return await sync_to_async(self.enqueue, thread_sensitive=True)(*instance, **args)

    def enqueue_many(self, items: Iterable[Any], *, on_invalid: OnInvalid = "raise") -> Enqueued:
        """Store many jobs in one transaction by COPY; see :func:`awa_django.enqueue.enqueue_many`.

        Each item is a dict of arguments, an instance of the kind's ``args`` class, or a JobInsert of its own.
        """
        jobs: list[JobInsert] = []
        places: list[int] = []
        invalid: list[InvalidJob] = []
        total = 0
        make, options = self._kind.make, self.options
        for index, item in enumerate(items):
            total += 1
            try:
                jobs.append(validated(item) if isinstance(item, JobInsert) else make(options, (item,), {}))
                places.append(index)
            except InvalidJob as fault:
                located = fault.below(f"jobs[{index}]")
                if on_invalid == "raise":
                    raise located from None
                invalid.append(located)
        return store_many(
            jobs,
            using=options.using,
            on_conflict=options.on_conflict,
            places=places,
            total=total,
            invalid=invalid,
        )

    async def aenqueue_many(self, items: Iterable[Any], *, on_invalid: OnInvalid = "raise") -> Enqueued:
        """:meth:`enqueue_many` from async code."""
        return await sync_to_async(self.enqueue_many, thread_sensitive=True)(items, on_invalid=on_invalid)


class JobKind(BoundJob, Generic[P, R]):
    """One kind of job: the function that runs it and the defaults of its jobs. Calling it calls the function."""

    def __init__(
        self,
        handler: Callable[P, R],
        *,
        kind: str | None = None,
        args: type | None = None,
        keep_result: bool = False,
        timeout: timedelta | None = None,
        descriptor: Descriptor = Descriptor(),  # noqa: B008 - an immutable value
        options: JobOptions = JobOptions(),
    ) -> None:
        self.handler = handler
        if kind is None:
            kind = handler.__name__ if args is None else derive_kind(args.__name__)
        self.kind = checked_kind(kind)
        self.args_type = args
        self.keep_result = keep_result
        self.timeout = timeout
        self.descriptor = descriptor
        self.is_async = inspect.iscoroutinefunction(handler)
        functools.update_wrapper(self, handler)
        super().__init__(self, options)
        _check_handler(handler)
        parameters = list(inspect.signature(handler).parameters.values())
        self.takes_context = bool(parameters) and _is_context(parameters[0])
        if self.takes_context:
            del parameters[0]
        self._signature = _Signature.read(self, parameters)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.handler(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<JobKind {self.kind!r}: {self.name}>"

    @property
    def name(self) -> str:
        """The handler's full name."""
        return f"{self.handler.__module__}.{self.handler.__qualname__}"

    def make(self, options: JobOptions, instance: Sequence[Any], args: Mapping[str, Any]) -> JobInsert:
        """A job of this kind; raises ``InvalidJob`` for arguments that do not fit or cannot be stored."""
        encoded = self._encode(instance, args)
        unique = options.unique
        return JobInsert(
            kind=self.kind,
            args=encoded,
            queue=options.queue,
            priority=options.priority,
            max_attempts=options.max_attempts,
            run_at=None if options.run_at is None else checked_run_at(options.run_at),
            metadata=options.metadata,
            tags=options.tags,
            unique_key=None if unique is None else unique.key(self.kind, options.queue, encoded),
            unique_states=None if unique is None else unique.bits,
            ordering_key=options.ordering_key,
        )

    def decode(self, args: JsonValue) -> Mapping[str, Any]:
        """The keyword arguments of a call for stored arguments, without ``ctx``.

        Raises ``InvalidJob`` if they do not fit; a further attempt would not either.
        """
        signature = self._signature
        if not isinstance(args, dict):
            raise InvalidJob("args", f"an object is needed, not {named(args)}")
        if signature.instance_name is not None:
            return {signature.instance_name: self._decode_instance(args)}
        if fault := signature.fault(args.keys()):
            raise InvalidJob("args", f"{fault} (handler {self.name})")
        convert = self._decode_arguments
        return args if convert is None else convert(args)

    def run(self, context: Any, arguments: Mapping[str, Any]) -> Any:
        """Call the handler; ``arguments`` come from :meth:`decode`. A coroutine for an async handler."""
        handler: Callable[..., Any] = self.handler
        return handler(context, **arguments) if self.takes_context else handler(**arguments)

    # -- follow-ups: see awa_django.followups for what the decorated function gets and may do

    def on_completed(self, make: Made) -> Made:
        """Store what the function returns together with each success; also one by a callback."""
        return followups.follow_up(self.kind, Event.COMPLETED)(make)

    def on_retried(self, make: Made) -> Made:
        """Store what the function returns whenever a failure, RetryAfter or a callback has a job run again."""
        return followups.follow_up(self.kind, Event.RETRIED)(make)

    def on_exhausted(self, make: Made) -> Made:
        """Store what the function returns together with each final failure."""
        return followups.follow_up(self.kind, Event.EXHAUSTED)(make)

    def on_cancelled(self, make: Made) -> Made:
        """Store what the function returns when a handler cancels its job."""
        return followups.follow_up(self.kind, Event.CANCELLED)(make)

    def on_waiting(self, make: Made) -> Made:
        """Store what the function returns when a job begins to wait for its callback."""
        return followups.follow_up(self.kind, Event.WAITING_FOR_CALLBACK)(make)

    def on_rescued(self, make: Made) -> Made:
        """Store what the function returns after an attempt was taken from a dead or late worker; best effort."""
        return followups.follow_up(self.kind, Event.RESCUED)(make)

    def prepare(self) -> None:
        """Read the annotations now. Raises ``ConfigurationError`` for one that cannot be read."""
        if self.args_type is None:
            _ = self._decode_arguments
        elif is_dataclass(self.args_type):
            annotations_of(self.args_type)

    def _encode(self, instance: Sequence[Any], args: Mapping[str, Any]) -> JsonValue:
        if instance:
            if len(instance) > 1 or args:
                raise InvalidJob("args", f"{self.kind} takes arguments by name, or one instance, not both")
            only = instance[0]
            if self.args_type is not None and isinstance(only, self.args_type):
                return encode(only)
            if not isinstance(only, Mapping):
                wanted = "a dict" if self.args_type is None else f"a {self.args_type.__name__} or a dict"
                raise InvalidJob(
                    "args", f"{self.kind} takes arguments by name, or {wanted}, not {type(only).__name__}"
                )
            args = only
        if self.args_type is not None:
            try:
                return encode(self.args_type(**args))
            except TypeError as error:
                raise InvalidJob("args", f"do not make a {self.args_type.__name__}: {error}") from None
        if fault := self._signature.fault(args.keys()):
            raise InvalidJob("args", fault)
        return encode(args if type(args) is dict else dict(args))

    @functools.cached_property
    def _decode_instance(self) -> Decoder:
        convert = decoder(self.args_type)
        assert convert is not None  # checked when the kind was made
        return convert

    @functools.cached_property
    def _decode_arguments(self) -> Decoder | None:
        skip = {"return"}
        if self.takes_context:
            skip.add(next(iter(inspect.signature(self.handler).parameters)))
        hints = annotations_of(self.handler, skip=skip)
        accepted = self._signature.accepted
        return members_decoder(
            {name: hint for name, hint in hints.items() if accepted is None or name in accepted}
        )


class _Signature(NamedTuple):
    """What a handler takes by name. ``accepted`` None means any name; ``instance_name`` one ``args`` instance."""

    owner: str
    accepted: frozenset[str] | None
    required: frozenset[str]
    instance_name: str | None = None

    @classmethod
    def read(cls, kind: JobKind[Any, Any], parameters: Sequence[inspect.Parameter]) -> _Signature:
        for parameter in parameters:
            if parameter.kind is parameter.POSITIONAL_ONLY:
                raise ConfigurationError(f"{kind.name}: parameter {parameter.name!r} must be usable by name")
        named = [item for item in parameters if item.kind in (item.POSITIONAL_OR_KEYWORD, item.KEYWORD_ONLY)]
        required = frozenset(item.name for item in named if item.default is item.empty)
        if kind.args_type is not None:
            if len(required) > 1 or not named:
                raise ConfigurationError(
                    f"{kind.name} is a handler with args={kind.args_type.__name__} and takes "
                    f"{'no argument' if not named else 'more than one argument'} for it besides ctx"
                )
            return cls(kind.kind, None, frozenset(), next(iter(required), named[0].name))
        if any(item.kind is item.VAR_KEYWORD for item in parameters):
            return cls(kind.kind, None, required)
        return cls(kind.kind, frozenset(item.name for item in named), required)

    def fault(self, given: typing.AbstractSet[str]) -> str | None:
        if self.accepted is None:
            missing = sorted(self.required - given)
            return f"missing {', '.join(missing)}" if missing else None
        if given == self.accepted:
            return None
        return names_fault(given, self.accepted, self.required, f"{self.owner} takes")


def _check_handler(handler: Callable[..., Any]) -> None:
    name = f"{handler.__module__}.{handler.__qualname__}"
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise ConfigurationError(f"{name} is a generator; a handler is a plain or an async function")
    owner = handler.__qualname__.rpartition(".")[0]
    if owner and not owner.endswith("<locals>"):
        raise ConfigurationError(f"{name} is a method; a handler is a function of a module")


def _is_context(parameter: inspect.Parameter) -> bool:
    if parameter.name == CONTEXT_NAME:
        return True
    annotation = parameter.annotation
    if isinstance(annotation, str):
        return annotation.rpartition(".")[2] == CONTEXT_CLASS
    return getattr(annotation, "__name__", None) == CONTEXT_CLASS


def checked_args_type(args: object) -> type | None:
    """A class of arguments, or None; raises ``ConfigurationError`` for anything that cannot be one."""
    if args is None:
        return None
    if isinstance(args, type) and (is_dataclass(args) or callable(getattr(args, "model_validate", None))):
        return args
    raise ConfigurationError(
        f"args={args!r} of a job is a dataclass, or a model with model_validate and model_dump"
    )


def _timeout(value: object) -> timedelta | None:
    if value is None:
        return None
    if isinstance(value, timedelta):
        span = value
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigurationError(f"timeout={value!r} of a job is a number of seconds or a timedelta")
    else:
        span = timedelta(seconds=value)
    if span <= timedelta(0):
        raise ConfigurationError(f"timeout={value!r} of a job is above zero")
    return span


class Registry(Mapping[str, JobKind[Any, Any]]):
    """The kinds of this process, by name."""

    def __init__(self) -> None:
        self._kinds: dict[str, JobKind[Any, Any]] = {}

    def __getitem__(self, kind: str) -> JobKind[Any, Any]:
        return self._kinds[kind]

    def __iter__(self) -> Iterator[str]:
        return iter(self._kinds)

    def __len__(self) -> int:
        return len(self._kinds)

    def add(self, kind: JobKind[Any, Any]) -> None:
        """Register a kind; the same function again, as after a reload, takes its own place."""
        known = self._kinds.get(kind.kind)
        if known is not None and known.name != kind.name:
            raise ConfigurationError(
                f"two handlers for kind {kind.kind!r}: {known.name} and {kind.name}; give one of them another kind="
            )
        self._kinds[kind.kind] = kind

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """Forget what is registered inside this block when it ends; for tests that declare jobs."""
        before = dict(self._kinds)
        try:
            with followups.isolated():
                yield
        finally:
            self._kinds = before


registry = Registry()


@overload
def job(handler: Callable[P, R], /) -> JobKind[P, R]: ...
@overload
def job(
    *,
    kind: str | None = None,
    args: type | None = None,
    queue: str = "default",
    priority: int = DEFAULT_PRIORITY,
    max_attempts: int = DEFAULT_MAX_ATTEMPTS,
    tags: Iterable[str] = (),
    metadata: Mapping[str, Any] | None = None,
    unique: Unique | Mapping[str, Any] | bool | None = None,
    keep_result: bool = False,
    timeout: float | timedelta | None = None,
    display_name: str | None = None,
    description: str | None = None,
    owner: str | None = None,
    docs_url: str | None = None,
) -> Callable[[Callable[P, R]], JobKind[P, R]]: ...
def job(
    handler: Callable[..., Any] | None = None,
    /,
    *,
    kind: str | None = None,
    args: type | None = None,
    queue: str = "default",
    priority: int = DEFAULT_PRIORITY,
    max_attempts: int = DEFAULT_MAX_ATTEMPTS,
    tags: Iterable[str] = (),
    metadata: Mapping[str, Any] | None = None,
    unique: Unique | Mapping[str, Any] | bool | None = None,
    keep_result: bool = False,
    timeout: float | timedelta | None = None,
    display_name: str | None = None,
    description: str | None = None,
    owner: str | None = None,
    docs_url: str | None = None,
) -> Any:
    """Declare the handler of a kind of job; ``@job`` alone or with options.

    The kind is ``kind``, else derived from the class ``args``, else the function's name. A first parameter named
    ``ctx``, or annotated JobContext, gets the context of the attempt; the others are the job's arguments, by name.
    With ``args``, a dataclass, the handler gets one instance of it. Annotations say what to restore
    from JSON, and must be readable at run time.

    Raises ``ConfigurationError`` if another function has the kind already, or an option is wrong.
    """

    def declare(function: Callable[..., Any]) -> JobKind[Any, Any]:
        if not inspect.isfunction(function):
            raise ConfigurationError(f"@job declares a function, not {function!r}")
        changes = {
            "queue": queue,
            "priority": priority,
            "max_attempts": max_attempts,
            "tags": tags,
            "metadata": metadata or {},
            "unique": unique,
        }
        try:
            declared = JobKind(
                function,
                kind=kind,
                args=checked_args_type(args),
                keep_result=keep_result,
                timeout=_timeout(timeout),
                descriptor=Descriptor(display_name, description, owner, docs_url),
                options=JobOptions().changed(changes),
            )
        except InvalidJob as fault:
            raise ConfigurationError(
                f"@job of {function.__module__}.{function.__qualname__}: {fault}"
            ) from None
        registry.add(declared)
        return declared

    return declare if handler is None else declare(handler)
