// SPDX-License-Identifier: Apache-2.0
// An AXI-Stream of a narrow bus as one of 512 bits. The narrow stream is never held up, so neither is
// the wide one. A wide word is offered in the clock after its last part; at 512 bits nothing is delayed.
module fide_axis_widen #(
  parameter int unsigned InW = 64   // 64, 128, 256 or 512
) (
  input  logic             clk_i,
  input  logic             rst_ni,

  input  logic             s_axis_tvalid_i,
  input  logic [InW-1:0]   s_axis_tdata_i,
  input  logic [InW/8-1:0] s_axis_tkeep_i,
  input  logic             s_axis_tlast_i,
  input  logic             s_axis_tuser_i,   // with tlast

  output logic             m_axis_tvalid_o,
  output logic [511:0]     m_axis_tdata_o,
  output logic [63:0]      m_axis_tkeep_o,
  output logic             m_axis_tlast_o,
  output logic             m_axis_tuser_o,

  output logic             idle_o            // no part of a frame is in it
);

  localparam int unsigned Parts = 512 / InW;
  localparam int unsigned PartW = (Parts == 1) ? 1 : $clog2(Parts);

  if (Parts * InW != 512 || InW < 64) begin : gen_bad_width
    $fatal(1, "fide_axis_widen: InW is 64, 128, 256 or 512");
  end

  if (Parts == 1) begin : gen_same
    assign m_axis_tvalid_o = s_axis_tvalid_i;
    assign m_axis_tdata_o  = s_axis_tdata_i;
    assign m_axis_tkeep_o  = s_axis_tkeep_i;
    assign m_axis_tlast_o  = s_axis_tlast_i;
    assign m_axis_tuser_o  = s_axis_tuser_i;
    assign idle_o          = 1'b1;
    logic unused;
    assign unused = ^{clk_i, rst_ni, PartW[0]};
  end else begin : gen_widen
    logic [PartW-1:0] part_q;   // the next part's place
    logic valid_q, last_q, user_q, under_way_q;
    logic [511:0] data_q;
    logic [63:0] keep_q;
    always_ff @(posedge clk_i) begin
      if (!rst_ni) begin
        part_q <= '0;
        valid_q <= 1'b0;
        under_way_q <= 1'b0;
      end else begin
        valid_q <= s_axis_tvalid_i && (s_axis_tlast_i || part_q == PartW'(Parts - 1));
        if (s_axis_tvalid_i) begin
          part_q <= s_axis_tlast_i ? '0 : part_q + 1'b1;
          under_way_q <= !s_axis_tlast_i;
        end
      end
      if (s_axis_tvalid_i) begin
        last_q <= s_axis_tlast_i;
        user_q <= s_axis_tuser_i;
        for (int unsigned i = 0; i < Parts; i++) begin
          if (part_q == PartW'(i)) begin
            data_q[InW*i +: InW] <= s_axis_tdata_i;
            keep_q[InW/8*i +: InW/8] <= s_axis_tkeep_i;
          end else if (part_q == '0) begin
            data_q[InW*i +: InW] <= '0;
            keep_q[InW/8*i +: InW/8] <= '0;
          end
        end
      end
    end
    assign m_axis_tvalid_o = valid_q;
    assign m_axis_tdata_o  = data_q;
    assign m_axis_tkeep_o  = keep_q;
    assign m_axis_tlast_o  = last_q;
    assign m_axis_tuser_o  = user_q;
    assign idle_o          = !valid_q && !under_way_q;
  end

`include "fide_assert.svh"
  `FIDE_ASSERT(KeepIsFull_A, !(s_axis_tvalid_i && !s_axis_tlast_i) || (&s_axis_tkeep_i))

endmodule
