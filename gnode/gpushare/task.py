"""What a runtime for GPU sharing is told about a task."""

from dataclasses import dataclass

from gsched.model.states import ShareClass


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedTask:
    """One attempt of a job that shares one GPU.

    Attributes:
        job: id of the job.
        attempt: number of the attempt.
        gpu_index: of the GPU on this node, in the order of PCI addresses.
        gpu_uuid: as NVML tells it; empty for a declared GPU.
        percent: share of the GPU, 1 to 100.
        memory_bytes: limit of GPU memory, of all processes of the job together.
        share_class: priority on this GPU.
        visible: the device that it has already, as an earlier gnode has chosen it; empty: none.
        directory: the job's own, which its processes can write and which goes with it; empty: it
            is not known.
    """

    job: str
    attempt: int
    gpu_index: int
    gpu_uuid: str
    percent: int
    memory_bytes: int
    share_class: ShareClass
    visible: str = ""
    directory: str = ""

    @property
    def gpu_name(self) -> str:
        """Return the name of the GPU for CUDA_VISIBLE_DEVICES: its UUID, else its index."""
        return self.gpu_uuid or str(self.gpu_index)
