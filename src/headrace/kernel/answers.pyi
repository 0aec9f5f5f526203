from headrace.kernel.answers_pure import answer as answer
from headrace.kernel.answers_pure import answers as answers
from headrace.kernel.answers_pure import newest as newest
