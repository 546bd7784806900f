// SPDX-License-Identifier: Apache-2.0
// A FIFO of registers: what is pushed is at the output one clock later.
module fide_fifo #(
  parameter int unsigned Width = 8,
  parameter int unsigned Depth = 16,
  localparam int unsigned PtrW = $clog2(Depth)
) (
  input  logic             clk_i,
  input  logic             rst_ni,
  input  logic             clear_i,

  input  logic             push_i,
  input  logic [Width-1:0] data_i,
  output logic             full_o,

  output logic             valid_o,
  output logic [Width-1:0] data_o,
  input  logic             pop_i,

  // Entries in use.
  output logic [PtrW:0]    level_o
);

  if (Depth < 2 || (1 << PtrW) != Depth) begin : gen_bad_depth
    $fatal(1, "fide_fifo: Depth is a power of two, at least 2");
  end

  logic [Width-1:0] mem [Depth];
  logic [PtrW:0] wr_q, rd_q;

  assign level_o = wr_q - rd_q;
  assign full_o  = level_o[PtrW];
  assign valid_o = wr_q != rd_q;
  assign data_o  = mem[rd_q[PtrW-1:0]];

  always_ff @(posedge clk_i) begin
    if (!rst_ni || clear_i) begin
      wr_q <= '0;
      rd_q <= '0;
    end else begin
      if (push_i && !full_o) wr_q <= wr_q + 1'b1;
      if (pop_i && valid_o) rd_q <= rd_q + 1'b1;
    end
    if (push_i && !full_o) mem[wr_q[PtrW-1:0]] <= data_i;
  end

`include "fide_assert.svh"
  `FIDE_ASSERT(LevelBounded_A, level_o <= (PtrW + 1)'(Depth))
  `FIDE_ASSERT(NoPushWhenFull_A, !(push_i && full_o && !clear_i))

`ifdef FIDE_FIFO_FV
`include "fide_fifo_fv.svh"
`endif

endmodule
