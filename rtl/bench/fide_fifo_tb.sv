// SPDX-License-Identifier: Apache-2.0
// The FIFO against a queue.
module fide_fifo_tb;
`include "fide_bench.svh"

  localparam int unsigned Width = 12, Depth = 8;
  logic clear, push, full, valid, pop;
  logic [Width-1:0] in, out;
  logic [$clog2(Depth):0] level;
  fide_fifo #(.Width(Width), .Depth(Depth)) dut (
    .clk_i(clk), .rst_ni(rst_n), .clear_i(clear), .push_i(push), .data_i(in), .full_o(full),
    .valid_o(valid), .data_o(out), .pop_i(pop), .level_o(level)
  );

  logic [Width-1:0] model [$];
  int unsigned was_full = 0, bias;
  initial begin
    {clear, push, pop, in} = '0;
    reset();
    for (int unsigned n = 0; n < 20_000; n++) begin
      if (n % 64 == 0) bias = 1 + below(6);
      clear = one_in(100);
      push = below(7) < bias && (model.size() < Depth || clear);
      pop = below(7) >= bias;
      in = Width'($urandom());
      settle();
      `CHECK(32'(level) == model.size(), "the level is what is in it")
      `CHECK(full == (model.size() == Depth), "full")
      `CHECK(valid == (model.size() != 0), "valid")
      if (valid) `CHECK(out == model[0], "the oldest entry comes out")
      was_full += 32'(full);
      if (pop && model.size() != 0) void'(model.pop_front());
      if (push) model.push_back(in);
      if (clear) model.delete();
      tick();
    end
    `CHECK(was_full > 100, "it was full now and then")
    done("fide_fifo");
  end
endmodule
