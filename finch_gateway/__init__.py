"""finch-gateway: any existing agent as a listing on Finch. These are the names an agent author imports."""

from .job import Job, JobFailed, Reply

__all__ = ["Job", "JobFailed", "Reply", "__version__"]
__version__ = "0.1.0"
