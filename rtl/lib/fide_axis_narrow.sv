// SPDX-License-Identifier: Apache-2.0
// An AXI-Stream of 512 bits on a narrower bus. It holds no word: a wide one stays where it is until its
// last part was taken, so taken at the wide side means that all of it has left.
module fide_axis_narrow #(
  parameter int unsigned OutW = 64   // 64, 128, 256 or 512
) (
  input  logic              clk_i,
  input  logic              rst_ni,
  input  logic              clear_i,   // the wide word in hand is withdrawn

  input  logic              s_axis_tvalid_i,
  output logic              s_axis_tready_o,
  input  logic [511:0]      s_axis_tdata_i,
  input  logic [63:0]       s_axis_tkeep_i,
  input  logic              s_axis_tlast_i,

  output logic              m_axis_tvalid_o,
  input  logic              m_axis_tready_i,
  output logic [OutW-1:0]   m_axis_tdata_o,
  output logic [OutW/8-1:0] m_axis_tkeep_o,
  output logic              m_axis_tlast_o
);

  localparam int unsigned Parts = 512 / OutW;
  localparam int unsigned PartW = (Parts == 1) ? 1 : $clog2(Parts);

  if (Parts * OutW != 512 || OutW < 64) begin : gen_bad_width
    $fatal(1, "fide_axis_narrow: OutW is 64, 128, 256 or 512");
  end

  assign m_axis_tvalid_o = s_axis_tvalid_i;
  if (Parts == 1) begin : gen_same
    assign s_axis_tready_o = m_axis_tready_i;
    assign m_axis_tdata_o  = s_axis_tdata_i;
    assign m_axis_tkeep_o  = s_axis_tkeep_i;
    assign m_axis_tlast_o  = s_axis_tlast_i;
    logic unused;
    assign unused = ^{clk_i, rst_ni, clear_i, PartW[0]};
  end else begin : gen_narrow
    logic [PartW-1:0] part_q;
    logic [Parts-1:0] used;      // parts that have bytes
    logic ends;                  // no part behind this one has
    for (genvar i = 0; i < int'(Parts); i++) begin : gen_used
      assign used[i] = s_axis_tkeep_i[OutW/8*i];
    end
    assign ends = (used >> part_q) >> 1 == '0;
    always_comb begin
      m_axis_tdata_o = '0;
      m_axis_tkeep_o = '0;
      for (int unsigned i = 0; i < Parts; i++) begin
        if (part_q == PartW'(i)) begin
          m_axis_tdata_o = s_axis_tdata_i[OutW*i +: OutW];
          m_axis_tkeep_o = s_axis_tkeep_i[OutW/8*i +: OutW/8];
        end
      end
    end
    assign m_axis_tlast_o  = s_axis_tlast_i && ends;
    assign s_axis_tready_o = m_axis_tready_i && ends;
    always_ff @(posedge clk_i) begin
      if (!rst_ni || clear_i) part_q <= '0;
      else if (m_axis_tvalid_o && m_axis_tready_i) part_q <= ends ? '0 : part_q + 1'b1;
    end
  end

endmodule
