from headrace.kernel.frames_pure import WIDTH as WIDTH
from headrace.kernel.frames_pure import Column as Column
from headrace.kernel.frames_pure import Frames as Frames
from headrace.kernel.frames_pure import publishes as publishes
