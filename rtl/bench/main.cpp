// SPDX-License-Identifier: Apache-2.0
// Runs a bench until it ends, and writes what it covered to the file that is named first.
#include "Vbench.h"
#include "verilated.h"
#include "verilated_cov.h"

int main(int argc, char** argv) {
    VerilatedContext context;
    context.commandArgs(argc, argv);
    Vbench bench{&context};
    while (!context.gotFinish()) {
        bench.eval();
        if (!bench.eventsPending()) break;
        context.time(bench.nextTimeSlot());
    }
    bench.final();
    if (argc > 1) context.coveragep()->write(argv[1]);
    // Without events and without an end the bench has stood still.
    return context.gotFinish() ? 0 : 1;
}
