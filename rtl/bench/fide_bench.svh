// SPDX-License-Identifier: Apache-2.0
// What every bench has: a clock, a reset, and checks that end the run. Inputs change behind the falling edge; `settle` waits until
// outputs follow them, and `tick` passes the rising edge.
  timeunit 1ns;
  timeprecision 1ns;

  logic clk = 1'b0, rst_n = 1'b0;
  always #5 clk = !clk;

  int unsigned checks = 0;
`define CHECK(cond_, what_)                                                \
  begin                                                                    \
    checks++;                                                              \
    if (!(cond_)) begin                                                    \
      $display("FAILED at %0t: %s", $time, what_);                         \
      $stop;                                                               \
    end                                                                    \
  end

  task automatic settle; #1; endtask
  task automatic tick;
    @(posedge clk);
    @(negedge clk);
  endtask
  task automatic reset;
    rst_n = 1'b0;
    repeat (3) tick();
    rst_n = 1'b1;
  endtask
  task automatic done(input string unit);
    $display("%s: %0d checks", unit, checks);
    $finish;
  endtask

  function automatic int unsigned below(input int unsigned bound);
    below = $urandom() % bound;
  endfunction
  function automatic logic one_in(input int unsigned times);
    one_in = below(times) == 0;
  endfunction
  function automatic logic [63:0] draw64;
    draw64 = {$urandom(), $urandom()};
  endfunction
