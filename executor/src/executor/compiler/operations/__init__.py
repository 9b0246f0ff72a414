"""The lowerings of core ATen, by what kind of loops they become. Importing this registers them."""

from executor.compiler.operations import (
    contractions as contractions,
)
from executor.compiler.operations import (
    creation as creation,
)
from executor.compiler.operations import (
    elementwise as elementwise,
)
from executor.compiler.operations import (
    indexing as indexing,
)
from executor.compiler.operations import (
    joining as joining,
)
from executor.compiler.operations import (
    kernels as kernels,
)
from executor.compiler.operations import (
    normalisation as normalisation,
)
from executor.compiler.operations import (
    reductions as reductions,
)
from executor.compiler.operations import (
    views as views,
)
